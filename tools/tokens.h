/* `tern tokens`. */
#ifndef TERN_TOOLS_TOKENS_H
#define TERN_TOOLS_TOKENS_H

int tokens_main(int argc, char **argv);

#endif
