/* `tern convert`. */
#ifndef TERN_TOOLS_CONVERT_H
#define TERN_TOOLS_CONVERT_H

int convert_main(int argc, char **argv);

#endif
