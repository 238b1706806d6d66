#include "distributed/store/wire.h"

#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <string.h>
#include <sys/random.h>

static const char magic[4] = {'T', 'E', 'R', 'N'};

/* A number of so many bytes. */
static void put_number(uint8_t *to, int bytes, uint64_t value) {
    for (int i = 0; i < bytes; i++) {
        to[i] = (uint8_t)(value >> 8 * i);
    }
}

static uint64_t get_number(const uint8_t *from, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) {
        value |= (uint64_t)from[i] << 8 * i;
    }
    return value;
}

void tn__hello_write(uint8_t to[TN__HELLO], const uint8_t nonce[TN__NONCE]) {
    memcpy(to, magic, sizeof(magic));
    put_number(to + 4, 2, TN__WIRE_VERSION);
    put_number(to + 6, 2, 0);
    memcpy(to + 8, nonce, TN__NONCE);
}

bool tn__hello_read(const uint8_t from[TN__HELLO], uint8_t nonce[TN__NONCE], int *version) {
    memcpy(nonce, from + 8, TN__NONCE);
    *version = (int)get_number(from + 4, 2);
    return memcmp(from, magic, sizeof(magic)) == 0;
}

void tn__proof(const char *token, const char *role, const tn__bond *bond,
               uint8_t proof[TN__DIGEST]) {
    struct hmac_sha256_ctx hmac;
    hmac_sha256_set_key(&hmac, strlen(token), (const uint8_t *)token);
    hmac_sha256_update(&hmac, 6, (const uint8_t *)role);
    hmac_sha256_update(&hmac, TN__NONCE, bond->client_nonce);
    hmac_sha256_update(&hmac, TN__NONCE, bond->server_nonce);
    hmac_sha256_update(&hmac, TN__PLACE, bond->place);
    hmac_sha256_digest(&hmac, TN__DIGEST, proof);
}

bool tn__proof_equal(const uint8_t a[TN__DIGEST], const uint8_t b[TN__DIGEST]) {
    return memeql_sec(a, b, TN__DIGEST) != 0; /* takes as long wherever they differ */
}

bool tn__bond_begin(tn__bond *bond) {
    return getrandom(bond->server_nonce, TN__NONCE, GRND_NONBLOCK) == TN__NONCE;
}

size_t tn__greeting_write(uint8_t to[TN__GREETING], const char *token, tn__bond *bond,
                          const uint8_t hello[TN__HELLO]) {
    int version;
    if (!tn__hello_read(hello, bond->client_nonce, &version)) { return 0; }
    tn__hello_write(to, bond->server_nonce);
    if (version != TN__WIRE_VERSION) { return TN__HELLO; }
    memcpy(to + TN__HELLO, bond->place, TN__PLACE);
    tn__proof(token, "server", bond, to + TN__HELLO + TN__PLACE);
    return TN__GREETING;
}

/* A client with the token has checked that the server has it too: only strangers send a wrong
 * proof. */
bool tn__client_proved(const char *token, const tn__bond *bond, const uint8_t said[TN__DIGEST]) {
    uint8_t proof[TN__DIGEST];
    tn__proof(token, "client", bond, proof);
    return tn__proof_equal(proof, said);
}

void tn__request_write(uint8_t to[TN__REQUEST_HEAD], const tn__request *r) {
    put_number(to, 1, r->kind);
    put_number(to + 1, 1, r->key_bytes);
    put_number(to + 2, 2, 0);
    put_number(to + 4, 4, r->bytes);
    put_number(to + 8, 4, r->expected_bytes);
    put_number(to + 12, 8, (uint64_t)r->number);
    put_number(to + 20, 8, r->microseconds);
}

bool tn__request_read(const uint8_t from[TN__REQUEST_HEAD], tn__request *r) {
    *r = (tn__request){.kind = (tn_store_kind)get_number(from, 1),
                       .key_bytes = (uint32_t)get_number(from + 1, 1),
                       .bytes = (uint32_t)get_number(from + 4, 4),
                       .expected_bytes = (uint32_t)get_number(from + 8, 4),
                       .number = (int64_t)get_number(from + 12, 8),
                       .microseconds = get_number(from + 20, 8)};
    bool has_value = r->kind == TN_STORE_SET || r->kind == TN_STORE_COMPARE_SET;
    return r->kind >= TN_STORE_SET && r->kind <= TN_STORE_DELETE && get_number(from + 2, 2) == 0 &&
           r->key_bytes > 0 && r->bytes <= (has_value ? TN_STORE_VALUE : 0) &&
           r->expected_bytes <= (r->kind == TN_STORE_COMPARE_SET ? TN_STORE_VALUE : 0);
}

void tn__reply_write(uint8_t to[TN__REPLY_HEAD], const tn__reply *r) {
    put_number(to, 4, r->status);
    put_number(to + 4, 4, r->bytes);
    put_number(to + 8, 8, (uint64_t)r->number);
}

bool tn__reply_read(const uint8_t from[TN__REPLY_HEAD], tn__reply *r) {
    *r = (tn__reply){.status = (tn_status)get_number(from, 4),
                     .bytes = (uint32_t)get_number(from + 4, 4),
                     .number = (int64_t)get_number(from + 8, 8)};
    uint32_t most = r->status == TN_OK ? TN_STORE_VALUE : TN_STORE_WHY - 1;
    return r->status <= TN_EMISMATCH && r->bytes <= most;
}
