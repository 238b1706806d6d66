/* `tern info`. */
#ifndef TERN_TOOLS_INFO_H
#define TERN_TOOLS_INFO_H

int info_main(int argc, char **argv);

#endif
