#include "distributed/store/session.h"

#include "core/memory.h"

#include <stdio.h>
#include <string.h>

/* ---- Life ------------------------------------------------------------------------------------ */

bool tn__session_begin(tn__session *s, tn__store_hub *hub, const uint8_t place[TN__PLACE]) {
    *s = (tn__session){.hub = hub};
    memcpy(s->bond.place, place, TN__PLACE);
    return tn__bond_begin(&s->bond);
}

static void stop_waiting(tn__session *s) {
    if (s->waiting_link) {
        *s->waiting_link = s->next_waiting;
        if (s->next_waiting) { s->next_waiting->waiting_link = s->waiting_link; }
        s->waiting_link = NULL;
        s->next_waiting = NULL;
    }
}

static void wait_for_key(tn__session *s) {
    s->next_waiting = s->hub->waiting;
    s->waiting_link = &s->hub->waiting;
    if (s->next_waiting) { s->next_waiting->waiting_link = &s->next_waiting; }
    s->hub->waiting = s;
    s->state = TN__SESSION_WAIT;
}

static void free_body(tn__session *s) {
    s->hub->buffered -= s->body ? s->body_capacity : 0;
    free(s->body);
    s->body = NULL;
}

static void free_output(tn__session *s) {
    s->hub->buffered -= s->out_body_bytes;
    free(s->out_body);
    s->out_body = NULL;
    s->out_head_bytes = s->out_body_bytes = s->out_sent = 0;
}

void tn__session_end(tn__session *s) {
    stop_waiting(s);
    free_body(s);
    free_output(s);
    for (tn__session **at = &s->hub->answered; s->is_answered; at = &(*at)->next_answered) {
        if (*at == s) {
            *at = s->next_answered;
            s->is_answered = false;
            break;
        }
    }
}

bool tn__session_trusted(const tn__session *s) {
    return s->state >= TN__SESSION_REQUEST && s->state <= TN__SESSION_WAIT;
}

tn__session *tn__store_hub_answered(tn__store_hub *hub) {
    tn__session *s = hub->answered;
    if (s) {
        hub->answered = s->next_answered;
        s->is_answered = false;
    }
    return s;
}

void tn__store_hub_clear(tn__store_hub *hub) {
    tn__table_clear(&hub->table);
}

/* ---- Output ---------------------------------------------------------------------------------- */

int tn__session_output(const tn__session *s, struct iovec parts[2]) {
    int n = 0;
    size_t sent = s->out_sent;
    if (sent < s->out_head_bytes) {
        parts[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)(s->out_head + sent),
                                    .iov_len = s->out_head_bytes - sent};
        sent = s->out_head_bytes;
    }
    sent -= s->out_head_bytes;
    if (sent < s->out_body_bytes) {
        parts[n++] = (struct iovec){.iov_base = (char *)s->out_body + sent,
                                    .iov_len = s->out_body_bytes - sent};
    }
    return n;
}

void tn__session_sent(tn__session *s, size_t bytes) {
    s->out_sent += bytes;
    if (s->out_sent == s->out_head_bytes + s->out_body_bytes) { free_output(s); }
}

static void session_say(tn__session *s, const uint8_t *head, size_t bytes) {
    memcpy(s->out_head, head, bytes);
    s->out_head_bytes = bytes;
    if (!s->is_answered) {
        s->next_answered = s->hub->answered;
        s->hub->answered = s;
        s->is_answered = true;
    }
}

/* False when the limit is reached; then no body is sent. */
static bool set_body(tn__session *s, const void *data, size_t bytes) {
    tn__store_hub *hub = s->hub;
    if (bytes == 0) { return true; }
    if (bytes > hub->buffered_limit - hub->buffered) { return false; }
    s->out_body = tn__malloc(bytes);
    if (!s->out_body) { return false; }
    memcpy(s->out_body, data, bytes);
    s->out_body_bytes = bytes;
    hub->buffered += bytes;
    return true;
}

static void session_reply(tn__session *s, tn__reply r, const void *data, size_t bytes) {
    uint8_t head[TN__REPLY_HEAD];
    if (!set_body(s, data, bytes)) { r = (tn__reply){.status = TN_ENOMEM}; }
    r.bytes = (uint32_t)s->out_body_bytes;
    tn__reply_write(head, &r);
    session_say(s, head, sizeof(head));
    s->state = TN__SESSION_REQUEST;
}

static void reply_failure(tn__session *s, tn_status status, const char *why) {
    session_reply(s, (tn__reply){.status = status}, why, strlen(why));
}

/* ---- Requests -------------------------------------------------------------------------------- */

static void answer_get(tn__session *s, const tn_store_value *value) {
    stop_waiting(s);
    session_reply(s, (tn__reply){0}, value->data, value->bytes);
}

/* The sessions that wait for the key, if c has set it. */
static void wake_waiters(tn__store_hub *hub, const tn_store_call *c) {
    bool sets =
        c->kind == TN_STORE_SET || c->kind == TN_STORE_ADD || c->kind == TN_STORE_COMPARE_SET;
    const tn_store_value *value = sets ? tn__table_find(&hub->table, c->key) : NULL;
    for (tn__session *s = hub->waiting, *next; s && value; s = next) {
        next = s->next_waiting;
        if (strcmp(s->key, c->key) == 0) { answer_get(s, value); }
    }
}

tn_status tn__store_hub_run(tn__store_hub *hub, tn_store_call *c) {
    tn_status status = tn__table_run(&hub->table, c);
    if (status == TN_OK) { wake_waiters(hub, c); }
    return status;
}

void tn__session_expire(tn__session *s, double now) {
    if (s->state != TN__SESSION_WAIT || now < s->deadline) { return; }
    tn_store_call c = {.key = s->key};
    tn__store_late(&c, now - s->since);
    stop_waiting(s);
    reply_failure(s, TN_EPEER, c.why);
}

/* The request is complete, and its key is valid. */
static void run_request(tn__session *s, double now) {
    const tn__request *r = &s->request;
    const uint8_t *value = s->body + r->key_bytes;
    tn_store_call c = {.kind = r->kind,
                       .key = s->key,
                       .number = r->number,
                       .data = value,
                       .bytes = r->bytes,
                       .expected = value + r->bytes,
                       .expected_bytes = r->expected_bytes};
    if (r->kind == TN_STORE_GET && !tn__table_find(&s->hub->table, s->key)) {
        s->since = now;
        s->deadline = now + 1e-6 * (double)r->microseconds;
        wait_for_key(s);
        tn__session_expire(s, now);
        return;
    }
    tn_status status = tn__table_run(&s->hub->table, &c);
    if (status != TN_OK) {
        reply_failure(s, status, c.why);
        return;
    }
    session_reply(s, (tn__reply){.number = c.number}, c.value.data, c.value.bytes);
    /* Those answered last are sent to first: who has set the key may be gone when it knows, and the
     * server with it. */
    wake_waiters(s->hub, &c);
}

/* ---- Input ----------------------------------------------------------------------------------- */

static bool session_fault(tn__session *s, const char *why) {
    s->fault = why;
    s->state = TN__SESSION_CLOSE;
    return false;
}

static bool take_hello(tn__session *s) {
    uint8_t greeting[TN__GREETING];
    size_t bytes = tn__greeting_write(greeting, s->hub->token, &s->bond, s->head);
    if (!bytes) { return session_fault(s, "it does not speak the store's protocol"); }
    session_say(s, greeting, bytes);
    s->state = TN__SESSION_PROOF;
    if (bytes < TN__GREETING) {
        session_fault(s, "it speaks another version of the store's protocol");
    }
    return true;
}

static bool take_proof(tn__session *s) {
    if (!tn__client_proved(s->hub->token, &s->bond, s->head)) {
        return session_fault(s, "it does not know the token");
    }
    s->state = TN__SESSION_REQUEST;
    return true;
}

/* Memory for the body. A body that exceeds what all sessions may hold is read, discarded and
 * refused. */
static bool take_request(tn__session *s) {
    tn__store_hub *hub = s->hub;
    tn__request *r = &s->request;
    if (!tn__request_read(s->head, r)) { return session_fault(s, "its request is malformed"); }
    s->body_bytes = 0;
    s->body_capacity = (size_t)r->key_bytes + r->bytes + r->expected_bytes;
    bool fits = s->body_capacity <= hub->buffered_limit - hub->buffered;
    s->body = fits ? tn__malloc(s->body_capacity) : NULL;
    s->state = s->body ? TN__SESSION_BODY : TN__SESSION_SKIP;
    hub->buffered += s->body ? s->body_capacity : 0;
    return true;
}

static bool take_body(tn__session *s, double now) {
    size_t length = s->request.key_bytes;
    if (s->state == TN__SESSION_SKIP) {
        reply_failure(s, TN_ENOMEM, "too much data in flight for the store");
        return true;
    }
    memcpy(s->key, s->body, length);
    s->key[length] = 0;
    if (strlen(s->key) != length || !tn__store_key(s->key)) {
        return session_fault(s, "its key is malformed");
    }
    run_request(s, now);
    free_body(s);
    return true;
}

/* Copies up to `bytes` of data into the head; *complete: it has `want`. Returns how many. */
static size_t fill_head(tn__session *s, const uint8_t *data, size_t bytes, size_t want,
                        bool *complete) {
    size_t more = want - s->head_bytes < bytes ? want - s->head_bytes : bytes;
    memcpy(s->head + s->head_bytes, data, more);
    s->head_bytes += more;
    *complete = s->head_bytes == want;
    s->head_bytes = *complete ? 0 : s->head_bytes;
    return more;
}

static size_t fill_body(tn__session *s, const uint8_t *data, size_t bytes) {
    size_t left = s->body_capacity - s->body_bytes, more = left < bytes ? left : bytes;
    if (s->body) { memcpy(s->body + s->body_bytes, data, more); }
    s->body_bytes += more;
    return more;
}

/* One step. *used: how many bytes it took. */
static bool session_step(tn__session *s, const uint8_t *data, size_t bytes, double now,
                         size_t *used) {
    bool complete;
    switch (s->state) {
    case TN__SESSION_HELLO:
        *used = fill_head(s, data, bytes, TN__HELLO, &complete);
        return !complete || take_hello(s);
    case TN__SESSION_PROOF:
        *used = fill_head(s, data, bytes, TN__DIGEST, &complete);
        return !complete || take_proof(s);
    case TN__SESSION_REQUEST:
        *used = fill_head(s, data, bytes, TN__REQUEST_HEAD, &complete);
        return !complete || take_request(s);
    case TN__SESSION_BODY:
    case TN__SESSION_SKIP:
        *used = fill_body(s, data, bytes);
        return s->body_bytes < s->body_capacity || take_body(s, now);
    case TN__SESSION_WAIT:
        return session_fault(s, "it sends data while its request waits");
    case TN__SESSION_CLOSE:
        break;
    }
    *used = bytes;
    return true;
}

bool tn__session_take(tn__session *s, const void *data, size_t bytes, double now) {
    const uint8_t *from = data;
    while (bytes) {
        size_t used = 0;
        if (s->out_head_bytes && s->state != TN__SESSION_CLOSE) {
            return session_fault(s, "it sends data before it has its reply");
        }
        if (!session_step(s, from, bytes, now, &used)) { return false; }
        from += used;
        bytes -= used;
    }
    return true;
}
