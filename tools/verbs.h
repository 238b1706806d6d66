/* The commands that `tern` runs, each in the file of its name. */
#ifndef TERN_TOOLS_VERBS_H
#define TERN_TOOLS_VERBS_H

int convert_main(int argc, char **argv);
int eval_main(int argc, char **argv);
int info_main(int argc, char **argv);
int plan_main(int argc, char **argv);
int tokenizer_main(int argc, char **argv);
int tokens_main(int argc, char **argv);

#endif
