/* 20. Policy gradient: a program that learns a game by playing (Williams 1992, "REINFORCE").
 *
 * The game is the cart-pole: a pole stands on a cart, which is pushed left or right at each step;
 * it ends when the pole leans more than 12 degrees, when the cart is 2.4 away, or after 200 steps,
 * and each step counts 1 (Barto, Sutton, Anderson 1983). A network gives the probability of each
 * push. It plays some games; then pushes that led to better than average results become more
 * likely, and the others less likely. Draws how long the games last, and the last game.
 */
#include <tern/tern.h>

#include <math.h>
#include <stdio.h>

enum { GAMES = 16, MOST = 200, ROUNDS = 60 };

/* ---- The game -------------------------------------------------------------------------------- */

typedef struct {
    float x, speed, angle, turn; /* metres, radians; the last two are the pole's */
} cart;

static float near_zero(void) {
    return (float)(0.1 * tn_random_uniform(tn_default_generator()) - 0.05);
}

static cart cart_start(void) {
    return (cart){near_zero(), near_zero(), near_zero(), near_zero()};
}

/* Advances by a fiftieth of a second; false if the pole has fallen. */
static bool push_cart(cart *c, int right) {
    const float gravity = 9.8F, mass = 1.1F, pole = 0.1F, half = 0.5F, dt = 0.02F;
    float force = right ? 10 : -10, sine = sinf(c->angle), cosine = cosf(c->angle);
    float push = (force + pole * half * c->turn * c->turn * sine) / mass;
    float bend =
        (gravity * sine - cosine * push) / (half * (4.0F / 3 - pole * cosine * cosine / mass));
    float pull = push - pole * half * bend * cosine / mass;
    *c = (cart){c->x + dt * c->speed, c->speed + dt * pull, c->angle + dt * c->turn,
                c->turn + dt * bend};
    return fabsf(c->x) < 2.4F && fabsf(c->angle) < 0.2095F;
}

/* ---- Playing --------------------------------------------------------------------------------- */

/* What was seen and done at each step of games played in parallel. */
typedef struct {
    cart seen[MOST][GAMES];
    int64_t done[MOST][GAMES];
    float worth[MOST][GAMES]; /* how many steps were still to come; 0 after the end */
    int length[GAMES];
} record;

static void play_games(tn_sequential *policy, record *r) {
    TN_NO_GRAD;
    *r = (record){0};
    cart carts[GAMES];
    for (int g = 0; g < GAMES; g++) {
        carts[g] = cart_start();
    }
    bool playing[GAMES];
    for (int g = 0; g < GAMES; g++) {
        playing[g] = true;
    }
    for (int t = 0; t < MOST; t++) {
        TN_SCOPE;
        float chance[GAMES][2];
        tn_tensor *now = TN_FROM(carts, TN_DIMS(GAMES, 4), TN_F32);
        tn_copy_out(tn_softmax(tn_call(policy, now), 1), chance);
        for (int g = 0; g < GAMES; g++) {
            r->seen[t][g] = carts[g];
            r->done[t][g] = tn_random_uniform(tn_default_generator()) < chance[g][1];
            r->length[g] += playing[g];
            playing[g] = playing[g] && push_cart(&carts[g], (int)r->done[t][g]);
        }
    }
    for (int g = 0; g < GAMES; g++) {
        for (int t = 0; t < r->length[g]; t++) {
            r->worth[t][g] = (float)(r->length[g] - t);
        }
    }
}

/* -mean of log probability times how much better than average the rest of the game was. */
static tn_tensor *policy_loss(tn_sequential *policy, record *r) {
    tn_tensor *seen = TN_FROM(r->seen, TN_DIMS(MOST, GAMES, 4), TN_F32);
    tn_tensor *done = TN_FROM(r->done, TN_DIMS(MOST, GAMES), TN_I64);
    tn_tensor *worth = TN_FROM(r->worth, TN_DIMS(MOST, GAMES), TN_F32);
    tn_tensor *played = tn_cast(tn_gt(worth, tn_scalar(0, TN_F32)), TN_F32);
    tn_tensor *steps = tn_sum_all(played), *mean = tn_div(tn_sum_all(worth), steps);
    tn_tensor *better = tn_mul(tn_sub(worth, mean), played);
    tn_tensor *spread = tn_sqrt(tn_div(tn_sum_all(tn_square(better)), steps));
    tn_tensor *minus_log = tn_cross_entropy(tn_call(policy, seen), done, TN_NONE);
    return tn_div(tn_sum_all(tn_mul(minus_log, tn_div(better, spread))), steps);
}

/* ---- Drawing --------------------------------------------------------------------------------- */

static void draw_game(const record *r) {
    for (int t = 0; t < r->length[0]; t += 20) {
        int at = 24 + (int)(r->seen[t][0].x * 10), top = at + (int)(r->seen[t][0].angle * 40);
        printf("%*s\n%*s     step %d\n", top, "|", at, "=", t);
    }
}

int main(void) {
    tn_on_error(tn_error_exit);
    tn_seed(20);
    tn_sequential *policy =
        TN_SEQUENTIAL(tn_linear_new(4, 64), TN_FN(tn_tanh), tn_linear_new(64, 2));
    tn_optim *opt = tn_adam(policy, TN_WITH(tn_adam, .lr = 1e-2));
    static record r;
    double rounds[ROUNDS], lengths[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        TN_SCOPE;
        play_games(policy, &r);
        tn_backward(policy_loss(policy, &r));
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        rounds[round] = round;
        lengths[round] = 0;
        for (int g = 0; g < GAMES; g++) {
            lengths[round] += (double)r.length[g] / GAMES;
        }
    }
    tn_curve curve = {"steps that a game lasts", rounds, lengths, ROUNDS, false};
    tn_plot_text(&(tn_plot){.curves = &curve, .count = 1}, stdout, 78, 12);
    draw_game(&r);
    printf("games lasted %.0f steps at first, %.0f at the end\n", lengths[0], lengths[ROUNDS - 1]);
    tn_optim_free(opt);
    tn_module_free(policy);
    return fflush(stdout) || ferror(stdout);
}
