/* `tern train`: the main function of examples/11_gpt2.c, which is compiled under this name. */
#ifndef TERN_TOOLS_TRAIN_H
#define TERN_TOOLS_TRAIN_H

int train_main(int argc, char **argv);

#endif
