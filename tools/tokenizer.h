/* `tern tokenizer`. */
#ifndef TERN_TOOLS_TOKENIZER_H
#define TERN_TOOLS_TOKENIZER_H

int tokenizer_main(int argc, char **argv);

#endif
