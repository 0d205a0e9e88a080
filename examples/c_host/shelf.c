/* SPDX-License-Identifier: Apache-2.0 */
#include "shelf.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct book {
  hypic_key key;
  int32_t* tokens;
  hypic_record* record;
  char* block;
  hypic_digest* digests;
  unsigned char* there; /* of each part */
  uint64_t last_use;
  struct book* next;
} book;

typedef struct lease {
  uint64_t ticket;
  hypic_answer* answers; /* their blocks are the lease's own */
  int64_t count;
  int released;
  hypic_reached reached;
  void* context;
  struct lease* next;
} lease;

typedef struct {
  pthread_mutex_t mutex;
  int64_t capacity, used;
  uint64_t last_ticket, clock;
  book* books;
  lease* leases;
} shelf;

static hypic_status failure(int32_t code, const char* argument) {
  hypic_status made = {0};
  made.code = code;
  made.argument = argument;
  return made;
}

static hypic_status ok(void) { return failure(HYPIC_OK, NULL); }

/* malloc(0) may be null, which is no failure here. */
static void* room_for(int64_t count, size_t size) { return calloc(count > 0 ? (size_t)count : 1, size); }

/* ---- books ---- */

static void free_book(book* one) {
  free(one->tokens);
  free(one->block);
  free(one->digests);
  free(one->there);
  hypic_record_destroy(one->record);
  free(one);
}

static void take_off(shelf* of, book* one) {
  book** at = &of->books;
  while (*at != one) at = &(*at)->next;
  *at = one->next;
  of->used -= hypic_record_bytes(one->record);
  free_book(one);
}

static book* find_book(const shelf* in, const hypic_key* key) {
  book* one = in->books;
  while (one != NULL && memcmp(one->key.bytes, key->bytes, sizeof key->bytes) != 0) one = one->next;
  return one;
}

static book* make_book(const hypic_publication* from) {
  const int64_t parts = hypic_record_part_count(from->record);
  book* one = calloc(1, sizeof *one);
  if (one == NULL) return NULL;
  one->key = from->key;
  one->tokens = room_for(from->token_count, sizeof *one->tokens);
  one->block = room_for(hypic_record_bytes(from->record), 1);
  one->digests = room_for(parts, sizeof *one->digests);
  one->there = room_for(parts, 1);
  if (one->tokens == NULL || one->block == NULL || one->digests == NULL || one->there == NULL ||
      hypic_record_copy(from->record, &one->record).code != HYPIC_OK) {
    free_book(one);
    return NULL;
  }
  if (from->token_count > 0) memcpy(one->tokens, from->tokens, (size_t)from->token_count * sizeof *one->tokens);
  return one;
}

static int has_tokens(const book* one, const int32_t* tokens, int64_t count) {
  return hypic_record_tokens(one->record) == count &&
         (count == 0 || memcmp(one->tokens, tokens, (size_t)count * sizeof *tokens) == 0);
}

/* Throws the least recently used books out until so many bytes are free. */
static int make_room(shelf* in, int64_t bytes) {
  if (bytes > in->capacity) return 0;
  while (in->capacity - in->used < bytes) {
    book *oldest = in->books, *one;
    for (one = in->books; one != NULL; one = one->next)
      if (one->last_use < oldest->last_use) oldest = one;
    take_off(in, oldest);
  }
  return 1;
}

/* Indices of the parts named, of all where none are; -1 for one that the record has not. Null: no memory. */
static int64_t* indices_of(const hypic_record* record, const hypic_part* parts, int64_t* count) {
  const int64_t named = parts == NULL ? 0 : *count;
  int64_t i, *indices;
  *count = named > 0 ? named : hypic_record_part_count(record);
  indices = room_for(*count, sizeof *indices);
  for (i = 0; indices != NULL && i < *count; ++i) indices[i] = named > 0 ? hypic_record_find(record, parts[i]) : i;
  return indices;
}

static int any_lacks(const int64_t* indices, int64_t count, const unsigned char* there) {
  int64_t i;
  for (i = 0; i < count; ++i)
    if (indices[i] < 0 || (there != NULL && !there[indices[i]])) return 1;
  return 0;
}

static void copy_part(const hypic_record* record, int64_t index, const char* from, char* to) {
  int64_t offset, bytes;
  hypic_record_part_place(record, index, &offset, &bytes);
  memcpy(to + offset, from + offset, (size_t)bytes);
}

/* ---- look-ups ---- */

static hypic_answer miss(int32_t reason) {
  hypic_answer made = {0};
  made.state = HYPIC_MISS;
  made.reason = reason;
  return made;
}

static hypic_answer answer_of(shelf* in, const hypic_lookup* asked) {
  book* const one = find_book(in, &asked->key);
  int64_t count = asked->part_count, i, *indices;
  hypic_answer made = {0};
  char* block;
  if (one == NULL) return miss(HYPIC_ABSENT);
  if (!has_tokens(one, asked->tokens, asked->token_count)) return miss(HYPIC_TOKEN_MISMATCH);
  if (!hypic_record_equal(one->record, asked->record)) return miss(HYPIC_LAYOUT_MISMATCH);
  indices = indices_of(one->record, asked->parts, &count);
  block = room_for(hypic_record_bytes(one->record), 1);
  if (indices == NULL || block == NULL) {
    made = miss(HYPIC_STORE_FAILURE);
  } else if (any_lacks(indices, count, one->there)) {
    made = miss(HYPIC_INCOMPLETE);
  } else {
    for (i = 0; i < count; ++i) copy_part(one->record, indices[i], one->block, block);
    /* Verified before it is used: whatever happened to the shelf, a wrong byte is a miss. */
    if (hypic_record_verify(one->record, block, one->digests, indices, count).code == HYPIC_OK) {
      made.state = HYPIC_HIT;
      made.block = block;
      made.bytes = (size_t)hypic_record_bytes(one->record);
      one->last_use = ++in->clock;
    } else {
      made = miss(HYPIC_CORRUPT_RECORD);
      take_off(in, one);
    }
  }
  free(indices);
  if (made.state != HYPIC_HIT) free(block);
  return made;
}

static void free_lease(lease* one) {
  int64_t i;
  for (i = 0; one->answers != NULL && i < one->count; ++i) free((void*)one->answers[i].block);
  free(one->answers);
  free(one);
}

/* Ends the released leases whose fences have been reached; those are not asked again. */
static void end_leases(shelf* of) {
  lease** at = &of->leases;
  while (*at != NULL) {
    lease* const one = *at;
    if (one->released && (one->reached == NULL || one->reached(one->context))) {
      *at = one->next;
      free_lease(one);
    } else {
      at = &one->next;
    }
  }
}

static lease* find_lease(const shelf* in, uint64_t ticket) {
  lease* one = in->leases;
  while (one != NULL && (one->released || one->ticket != ticket)) one = one->next;
  return one;
}

static hypic_status shelf_begin(void* context, const hypic_lookup* lookups, int64_t count, uint64_t* ticket) {
  shelf* const in = context;
  lease* const made = calloc(1, sizeof *made);
  int64_t i;
  if (made == NULL) return failure(HYPIC_BACKEND_FAILURE, "memory");
  made->answers = room_for(count, sizeof *made->answers);
  made->count = count;
  if (made->answers == NULL) {
    free_lease(made);
    return failure(HYPIC_BACKEND_FAILURE, "memory");
  }
  pthread_mutex_lock(&in->mutex);
  end_leases(in);
  for (i = 0; i < count; ++i) made->answers[i] = answer_of(in, &lookups[i]);
  *ticket = made->ticket = ++in->last_ticket;
  made->next = in->leases;
  in->leases = made;
  pthread_mutex_unlock(&in->mutex);
  return ok();
}

static hypic_status shelf_poll(void* context, uint64_t ticket, hypic_answer* answers, int64_t count) {
  shelf* const in = context;
  hypic_status outcome = ok();
  lease* found;
  pthread_mutex_lock(&in->mutex);
  end_leases(in);
  found = find_lease(in, ticket);
  if (found == NULL) {
    outcome = failure(HYPIC_NOT_FOUND, "ticket");
  } else if (found->count != count) {
    outcome = failure(HYPIC_INVALID_SHAPE, "answers");
  } else if (count > 0) {
    memcpy(answers, found->answers, (size_t)count * sizeof *answers);
  }
  pthread_mutex_unlock(&in->mutex);
  return outcome;
}

static hypic_status shelf_release(void* context, uint64_t ticket, hypic_reached reached, void* reached_context) {
  shelf* const in = context;
  lease* found;
  pthread_mutex_lock(&in->mutex);
  found = find_lease(in, ticket);
  if (found != NULL) {
    found->released = 1;
    found->reached = reached;
    found->context = reached_context;
  }
  end_leases(in);
  pthread_mutex_unlock(&in->mutex);
  return found != NULL ? ok() : failure(HYPIC_NOT_FOUND, "ticket");
}

/* ---- publication ---- */

static hypic_status check(const hypic_publication* one, const int64_t* indices, int64_t count) {
  if (one->value < 0) return failure(HYPIC_INVALID_ARGUMENT, "value");
  if (any_lacks(indices, count, NULL)) return failure(HYPIC_INVALID_ARGUMENT, "parts");
  if (one->token_count != hypic_record_tokens(one->record)) return failure(HYPIC_INVALID_SHAPE, "tokens");
  if ((int64_t)one->bytes != hypic_record_bytes(one->record)) return failure(HYPIC_INVALID_SHAPE, "block");
  if (one->digest_count != hypic_record_part_count(one->record)) return failure(HYPIC_INVALID_SHAPE, "digests");
  return count == 0 ? ok() : hypic_record_verify(one->record, one->block, one->digests, indices, count);
}

/* The book of a publication's key, made where there is none yet. */
static hypic_status book_for(shelf* in, const hypic_publication* from, book** to) {
  const int64_t bytes = hypic_record_bytes(from->record);
  *to = find_book(in, &from->key);
  if (*to != NULL) {
    if (!has_tokens(*to, from->tokens, from->token_count)) return failure(HYPIC_INVALID_ARGUMENT, "tokens");
    if (!hypic_record_equal((*to)->record, from->record)) return failure(HYPIC_INVALID_SHAPE, "record");
    return ok();
  }
  *to = make_book(from);
  if (*to == NULL) return failure(HYPIC_BACKEND_FAILURE, "memory");
  if (!make_room(in, bytes)) {
    free_book(*to);
    return failure(HYPIC_CAPACITY_EXCEEDED, "bytes");
  }
  in->used += bytes;
  (*to)->next = in->books;
  in->books = *to;
  return ok();
}

static hypic_status keep(shelf* in, const hypic_publication* from) {
  int64_t count = from->part_count, i, *indices;
  hypic_status outcome;
  book* to;
  if (from->record == NULL) return failure(HYPIC_INVALID_ARGUMENT, "record");
  indices = indices_of(from->record, from->parts, &count);
  outcome = indices == NULL ? failure(HYPIC_BACKEND_FAILURE, "memory") : check(from, indices, count);
  if (outcome.code == HYPIC_OK) outcome = book_for(in, from, &to);
  for (i = 0; outcome.code == HYPIC_OK && i < count; ++i) {
    if (to->there[indices[i]]) continue; /* what is there stays */
    copy_part(from->record, indices[i], from->block, to->block);
    to->digests[indices[i]] = from->digests[indices[i]];
    to->there[indices[i]] = 1;
  }
  if (outcome.code == HYPIC_OK) to->last_use = ++in->clock;
  free(indices);
  return outcome;
}

static hypic_status shelf_publish(void* context, const hypic_publication* publications, int64_t count,
                                  hypic_status* outcomes) {
  shelf* const in = context;
  hypic_status first = ok();
  int64_t i;
  pthread_mutex_lock(&in->mutex);
  end_leases(in);
  for (i = 0; i < count; ++i) {
    outcomes[i] = keep(in, &publications[i]);
    if (first.code == HYPIC_OK) first = outcomes[i];
  }
  pthread_mutex_unlock(&in->mutex);
  return first;
}

/* ---- the whole ---- */

static void shelf_destroy(void* context) {
  shelf* const in = context;
  while (in->books != NULL) take_off(in, in->books);
  while (in->leases != NULL) {
    lease* const one = in->leases;
    in->leases = one->next;
    free_lease(one);
  }
  pthread_mutex_destroy(&in->mutex);
  free(in);
}

hypic_store* shelf_create(int64_t capacity_bytes) {
  hypic_store_table table = {sizeof table};
  hypic_store* made = NULL;
  shelf* const in = calloc(1, sizeof *in);
  if (in == NULL) return NULL;
  pthread_mutex_init(&in->mutex, NULL);
  in->capacity = capacity_bytes;
  table.context = in;
  table.begin = shelf_begin;
  table.poll = shelf_poll;
  table.publish = shelf_publish;
  table.release = shelf_release;
  table.destroy = shelf_destroy;
  if (hypic_table_store_create(&table, &made).code != HYPIC_OK) shelf_destroy(in);
  return made;
}

int shelf_damage(hypic_store* store, const hypic_lookup* of) {
  shelf* const in = hypic_store_context(store);
  book* one;
  int64_t index = -1, offset, bytes;
  pthread_mutex_lock(&in->mutex);
  one = find_book(in, &of->key);
  if (one != NULL) index = hypic_record_find(one->record, of->parts[0]);
  if (index >= 0 && one->there[index]) {
    hypic_record_part_place(one->record, index, &offset, &bytes);
    one->block[offset + bytes / 2] ^= 1;
  } else {
    index = -1;
  }
  pthread_mutex_unlock(&in->mutex);
  return index >= 0;
}
