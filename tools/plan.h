/* `tern plan`. */
#ifndef TERN_TOOLS_PLAN_H
#define TERN_TOOLS_PLAN_H

int plan_main(int argc, char **argv);

#endif
