/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HYPIC_H
#define HYPIC_H

/* hypic for C, and through it for any language: the model, keys, records, stores, the two passes of a request.
   Names and contracts are those of the C++ headers, which say more: hypic_assembler_linear is assembler::linear.

   Handles   are opaque; what a *_create makes, the *_destroy of its name ends. A null handle may be destroyed. What a
             handle was made from has to outlive it only where that is said.
   Structs   that hypic reads begin with their size, which the caller sets to sizeof; arrays of them have one size.
             A later hypic reads an older program's structs, and an older hypic refuses members that it does not know
             unless they are zero.
   Errors    every call returns a hypic_status by value; code 0 is ok. On any other nothing was made or written.
   Threads   calls on one store may come from any thread; other handles are read by calls and may be shared.
   Memory    tensors are fp32, with strides in elements; their memory is the caller's. */

#include <stddef.h>
#include <stdint.h>

#define HYPIC_C_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hypic_model hypic_model;
typedef struct hypic_record hypic_record;
typedef struct hypic_store hypic_store;
typedef struct hypic_prefill hypic_prefill;
typedef struct hypic_batch hypic_batch;
typedef struct hypic_assembler hypic_assembler;

/* The version of the library that the program runs with. */
HYPIC_C_API void hypic_version(int32_t* major, int32_t* minor, int32_t* patch);

/* ---- statuses ---- */

enum {
  HYPIC_OK = 0,
  HYPIC_INVALID_ARGUMENT = 1,
  HYPIC_INVALID_SHAPE = 2,
  HYPIC_OUT_OF_RANGE = 3,
  HYPIC_UNSUPPORTED = 4,
  HYPIC_WORKSPACE_TOO_SMALL = 5,
  HYPIC_CAPACITY_EXCEEDED = 6,
  HYPIC_NOT_FOUND = 7,
  HYPIC_CORRUPT = 8,
  HYPIC_BACKEND_FAILURE = 9,
  HYPIC_OUT_OF_MEMORY = 10
};

/* `argument` is a string literal of whoever made the status, or null. */
typedef struct {
  int32_t code;
  int32_t
      relation; /* how `found` has to relate to `expected`: 0 none, 1 equal to, 2 at least, 3 at most, 4 multiple of */
  int32_t measure; /* what of a tensor was found: 0 nothing, 1 the extent, 2 the stride of `dimension` */
  int32_t dimension;
  char const* argument;
  int64_t found;
  int64_t expected;
} hypic_status;

/* Writes the status in words, cut to `capacity` with its final 0; returns the length of the whole. */
HYPIC_C_API size_t hypic_message(hypic_status status, char* text, size_t capacity);

/* ---- tensors ---- */

typedef struct {
  float* data;
  int32_t rank; /* 1 .. 4 */
  int64_t extent[4];
  int64_t stride[4];
} hypic_tensor;

/* ---- models, keys, records ---- */

enum { HYPIC_LINEAR = 0, HYPIC_ATTENTION = 1 };
enum { HYPIC_RETNET = 0, HYPIC_GLA = 1, HYPIC_GATED_DELTANET = 2, HYPIC_KDA = 3 };
enum { HYPIC_NATURAL_LOG = 0, HYPIC_LOG2 = 1, HYPIC_LINEAR_GATES = 2 };
enum { HYPIC_ROTATE_HALF = 0, HYPIC_INTERLEAVED = 1 };

typedef struct {
  size_t size;
  int32_t kind; /* HYPIC_LINEAR or HYPIC_ATTENTION; members of the other kind are zero */
  int32_t key_dim;
  int32_t value_dim;
  double const* frequencies; /* `pairs` of them, radians a position; null: q and k are not rotary */
  int32_t pairs;
  int32_t pairing;
  /* linear */
  int32_t family;
  int32_t key_heads;
  int32_t value_heads;
  float q_scale;
  int32_t l2_normalize;
  float l2_epsilon;
  int32_t gates; /* their space */
  int32_t tail_rows;
  int32_t tail_channels;
  int32_t tail_groups; /* 0 is 1 */
  /* attention */
  int32_t query_heads;
  int32_t kv_heads;
  float scale;
  float soft_cap;
} hypic_layer;

typedef struct {
  size_t size;
  hypic_layer const* layers;
  int64_t layer_count;
  int32_t head_rows; /* W */
  int64_t max_positions;
} hypic_model_info;

HYPIC_C_API hypic_status hypic_model_create(hypic_model_info const* info, hypic_model** model);
HYPIC_C_API void hypic_model_destroy(hypic_model* model);
/* 64 hexadecimal digits and a final 0. */
HYPIC_C_API hypic_status hypic_model_fingerprint(hypic_model const* model, char const* host, char name[65]);

typedef struct {
  uint8_t bytes[32];
} hypic_key;
typedef hypic_key hypic_digest;

typedef struct {
  size_t size;
  int32_t const* tokens;
  int64_t token_count;
  void const* content; /* digest of what non-text tokens stand for; null for text */
  size_t content_bytes;
  char const* model;  /* the fingerprint */
  char const* tenant; /* null is empty, here and below */
  char const* adapter;
  uint64_t epoch;
} hypic_identity;

HYPIC_C_API hypic_status hypic_make_key(hypic_identity const* identity, hypic_key* key);

enum { HYPIC_HEAD_KEYS = 0, HYPIC_LINEAR_STATE = 1, HYPIC_TAIL = 2, HYPIC_KEYS_VALUES = 3 };

typedef struct {
  int32_t layer;
  int32_t kind;
  int32_t head;
} hypic_part;

/* The layout of the records of segments of that many tokens. */
HYPIC_C_API hypic_status hypic_record_create(hypic_model const* model, int64_t tokens, hypic_record** record);
HYPIC_C_API void hypic_record_destroy(hypic_record* record);
HYPIC_C_API int64_t hypic_record_bytes(hypic_record const* record);
HYPIC_C_API int64_t hypic_record_part_count(hypic_record const* record);
HYPIC_C_API hypic_part hypic_record_part(hypic_record const* record, int64_t index);
/* Where that part lies in a block, in bytes. */
HYPIC_C_API void hypic_record_part_place(hypic_record const* record, int64_t index, int64_t* offset, int64_t* bytes);
/* The index of a part, or -1. */
HYPIC_C_API int64_t hypic_record_find(hypic_record const* record, hypic_part part);
HYPIC_C_API int64_t hypic_record_tokens(hypic_record const* record);
/* For a store, which keeps records beyond their publication and compares them: a copy, and whether two are equal. */
HYPIC_C_API hypic_status hypic_record_copy(hypic_record const* record, hypic_record** copy);
HYPIC_C_API int hypic_record_equal(hypic_record const* left, hypic_record const* right);
/* Shapes: block [hypic_record_bytes], digests [hypic_record_part_count]. */
HYPIC_C_API hypic_status hypic_record_digests(hypic_record const* record, void const* block, hypic_digest* digests);
/* Whether the parts at `indices` (null: all) have these digests: HYPIC_CORRUPT where one has not, found being the first.
   Shapes: block [hypic_record_bytes], digests [hypic_record_part_count], of which those at `indices` are read. */
HYPIC_C_API hypic_status hypic_record_verify(hypic_record const* record, void const* block, hypic_digest const* digests,
                                             int64_t const* indices, int64_t index_count);

/* Windows on a block, which last as long as its memory; those of a leased block are only read. `layer` is of the kind
   that has what each names. Shapes: keys, values [tokens, kv_heads, dim]; operators [value_heads, 1, Dk or Dk^2],
   end_states [value_heads, Dk, Dv], both of rank 0 where the segment has no body; tail [min(K-1, tokens), groups,
   channels a group]. */
HYPIC_C_API hypic_status hypic_record_keys_values(hypic_model const* model, hypic_record const* record, int32_t layer,
                                                  void const* block, hypic_tensor* keys, hypic_tensor* values);
HYPIC_C_API hypic_status hypic_record_summary(hypic_model const* model, hypic_record const* record, int32_t layer,
                                              void const* block, hypic_tensor* operators, hypic_tensor* end_states);
HYPIC_C_API hypic_status hypic_record_tail(hypic_model const* model, hypic_record const* record, int32_t layer,
                                           void const* block, hypic_tensor* tail);

/* ---- stores ---- */

enum { HYPIC_PENDING = 0, HYPIC_HIT = 1, HYPIC_MISS = 2 };
enum {
  HYPIC_NO_MISS = 0,
  HYPIC_ABSENT = 1,
  HYPIC_INCOMPLETE = 2,
  HYPIC_TOKEN_MISMATCH = 3,
  HYPIC_LAYOUT_MISMATCH = 4,
  HYPIC_CORRUPT_RECORD = 5,
  HYPIC_STORE_FAILURE = 6
};

typedef struct {
  size_t size;
  hypic_key key;
  int32_t const* tokens;
  int64_t token_count;
  hypic_record const* record; /* outlives the ticket, as the tokens do */
  hypic_part const* parts;    /* null: all */
  int64_t part_count;
} hypic_lookup;

typedef struct {
  int32_t state;
  int32_t reason;
  void const* block; /* of a hit: in place until the ticket is released */
  size_t bytes;
} hypic_answer;

typedef struct {
  size_t size;
  hypic_key key;
  int32_t const* tokens;
  int64_t token_count;
  hypic_record const* record;
  void const* block;
  size_t bytes;
  hypic_digest const* digests;
  int64_t digest_count;
  hypic_part const* parts;
  int64_t part_count;
  int64_t value;
} hypic_publication;

/* Whether the work that reads leased bytes is over. */
typedef int (*hypic_reached)(void* context);

/* A store of the caller's own. Each verb keeps the contract of the C++ cache_store; none may be null but `destroy`. */
typedef struct {
  size_t size;
  void* context;
  hypic_status (*begin)(void* context, hypic_lookup const* lookups, int64_t count, uint64_t* ticket);
  hypic_status (*poll)(void* context, uint64_t ticket, hypic_answer* answers, int64_t count);
  hypic_status (*publish)(void* context, hypic_publication const* publications, int64_t count, hypic_status* outcomes);
  hypic_status (*release)(void* context, uint64_t ticket, hypic_reached reached, void* reached_context);
  void (*destroy)(void* context);
} hypic_store_table;

HYPIC_C_API hypic_status hypic_memory_store_create(int64_t capacity_bytes, hypic_store** store);
HYPIC_C_API hypic_status hypic_table_store_create(hypic_store_table const* table, hypic_store** store);
HYPIC_C_API void hypic_store_destroy(hypic_store* store);
/* The context of the table that the store was made of; null for another store. */
HYPIC_C_API void* hypic_store_context(hypic_store const* store);
HYPIC_C_API hypic_status hypic_store_begin(hypic_store* store, hypic_lookup const* lookups, int64_t count,
                                           uint64_t* ticket);
HYPIC_C_API hypic_status hypic_store_poll(hypic_store* store, uint64_t ticket, hypic_answer* answers, int64_t count);
HYPIC_C_API hypic_status hypic_store_publish(hypic_store* store, hypic_publication const* publications, int64_t count,
                                             hypic_status* outcomes);
/* `reached` may be null: the work is over now. */
HYPIC_C_API hypic_status hypic_store_release(hypic_store* store, uint64_t ticket, hypic_reached reached, void* context);

/* ---- the contract kit ---- */

/* How the kit comes by the store that it checks. Each clause gets a store of its own, empty. What a host leaves out is
   not checked, and the report says so. */
typedef struct {
  size_t size;
  void* context;
  /* A store without records, which the kit destroys; or null, which breaks the clause. */
  hypic_store* (*make)(void* context);
  int64_t capacity_bytes; /* that such a store holds, at least 256 KiB; 0: clauses on a full store are skipped */
  /* Flips a bit of a stored part as faulty memory would, behind the verbs. `of` asks for that one part, which was
     published; nobody leases it. 0: the part is not there. Null: clauses on damaged bytes are skipped. */
  int (*damage)(void* context, hypic_store* store, hypic_lookup const* of);
  int32_t threads;    /* that call at once in the clauses on threads; 0 is 8 */
  int64_t most_polls; /* after which a pending answer counts as none; 0 is 10000000 */
} hypic_store_under_test;

enum { HYPIC_KEPT = 0, HYPIC_BROKEN = 1, HYPIC_SKIPPED = 2 };

/* One clause of the contract, and what became of it. The words are gone after the call that they were given to. */
typedef struct {
  size_t size;
  char const* verb;   /* begin, poll, publish, release, or any */
  char const* clause; /* what has to hold */
  int32_t outcome;
  char const* found; /* of a broken clause: what was found, and what was expected; of a skipped one: why */
} hypic_clause_report;

/* Holds a store against the contract, clause by clause; for tests, and for the start of a program. `tell` is called on
   the caller's thread, once a clause, in an order that is the same each time; on an error it is not called. */
HYPIC_C_API hypic_status hypic_check_store_contract(hypic_store_under_test const* subject,
                                                    void (*tell)(void* context, hypic_clause_report const* report),
                                                    void* tell_context);

/* ---- the first pass: a segment alone ---- */

typedef struct {
  size_t size;
  void* workspace;
  size_t workspace_bytes;
  int32_t threads;
} hypic_exec;

/* Rows as a linear layer consumes them. Shapes: q, k [rows, key_heads, Dk], v [rows, value_heads, Dv], gates [rows,
   value_heads, 1 or Dk], beta [rows, value_heads] for the delta rules, rank 0 for the others. */
typedef struct {
  size_t size;
  hypic_tensor q;
  hypic_tensor k;
  hypic_tensor v;
  hypic_tensor gates;
  hypic_tensor beta;
} hypic_rows;

/* Scratch of either call on a segment of that many tokens. */
HYPIC_C_API hypic_status hypic_segment_workspace_bytes(hypic_model const* model, int32_t layer, int64_t tokens,
                                                       int32_t threads, int64_t* bytes);
/* A linear layer of a segment that is computed alone: its outputs, and its parts of the record but for the tail.
   Shapes: o [tokens, value_heads, Dv], of rank 0 where it is not wanted. */
HYPIC_C_API hypic_status hypic_segment_linear(hypic_model const* model, int32_t layer, hypic_rows const* rows,
                                              hypic_tensor o, hypic_record const* record, void* block,
                                              hypic_exec const* exec);
/* The tail of that layer: the last K-1 of its raw rows. Shapes: raw [tokens, channels]. */
HYPIC_C_API hypic_status hypic_segment_tail(hypic_model const* model, int32_t layer, hypic_tensor raw,
                                            hypic_record const* record, void* block);
/* An attention layer of such a segment. Shapes: q [tokens, query_heads, key_dim], k [tokens, kv_heads, key_dim], v, o;
   q and k turned to positions from 0. */
HYPIC_C_API hypic_status hypic_segment_attention(hypic_model const* model, int32_t layer, hypic_tensor q,
                                                 hypic_tensor k, hypic_tensor v, hypic_tensor o,
                                                 hypic_record const* record, void* block, hypic_exec const* exec);

/* ---- the first pass in pieces: a batch of sequences ---- */

/* Rows [first_row, first_row + rows) of the packed inputs, which are the tokens [position, position + rows) of their
   segment. Between the pieces of a segment its states and tails wait in their slots, and all else in its block. */
typedef struct {
  size_t size;
  int64_t first_row;
  int64_t rows;
  int64_t position;           /* tokens of the segment that earlier pieces have consumed */
  int32_t initial_slot;       /* of the pools of states and tails; -1: from zero, at position 0 alone */
  int32_t final_slot;         /* -1: nowhere; may be the initial one */
  hypic_record const* record; /* of the whole segment; null: none is made */
  void* block;                /* of that record, which all pieces write; no other sequence of the batch has it */
} hypic_sequence;

enum { HYPIC_GATE_OUT_OF_RANGE = 1, HYPIC_NON_FINITE = 2, HYPIC_EXPANSIVE_UPDATE = 4 };

/* Records and blocks outlive the prefill. Sequences share no row. */
HYPIC_C_API hypic_status hypic_prefill_create(hypic_model const* model, hypic_sequence const* sequences, int64_t count,
                                              int64_t total_rows, int64_t slots, hypic_prefill** prefill);
HYPIC_C_API void hypic_prefill_destroy(hypic_prefill* prefill);
/* Scratch of any of its calls. */
HYPIC_C_API hypic_status hypic_prefill_workspace_bytes(hypic_prefill const* prefill, int32_t threads, int64_t* bytes);
/* A linear layer: outputs, states by slot, and the records' parts but for the tails. Bits are an unbroken run's where
   breaks lie at W plus a multiple of hypic_prefill_chunk.
   Shapes: o [total_rows, value_heads, Dv] or of rank 0, states [slots, value_heads, Dk, Dv], which may be of rank 0
   where no sequence has a slot; flags [sequences]: bits are OR-ed into what is there, and a segment with any but
   HYPIC_EXPANSIVE_UPDATE may not be published. */
HYPIC_C_API hypic_status hypic_prefill_linear(hypic_prefill const* prefill, int32_t layer, hypic_rows const* rows,
                                              hypic_tensor o, hypic_tensor states, uint32_t* flags,
                                              hypic_exec const* exec);
HYPIC_C_API int64_t hypic_prefill_chunk(int32_t family);
/* The tail before each sequence, for its convolution; the tails after it, in their slots and, after the last piece of a
   segment, in its record.
   Shapes: raw [total_rows, channels], pool [slots, K-1, channels] or of rank 0 as above, tails [sequences, K-1,
   channels]. */
HYPIC_C_API hypic_status hypic_prefill_tails(hypic_prefill const* prefill, int32_t layer, hypic_tensor raw,
                                             hypic_tensor pool, hypic_tensor tails);
/* An attention layer: keys and values go into the records, and rows see those of their segment so far. A sequence
   without a record is refused at any position but 0. Shapes: as of hypic_segment_attention, [total_rows, ...]. */
HYPIC_C_API hypic_status hypic_prefill_attention(hypic_prefill const* prefill, int32_t layer, hypic_tensor q,
                                                 hypic_tensor k, hypic_tensor v, hypic_tensor o,
                                                 hypic_exec const* exec);

/* ---- cached parts into place, for hosts with kernels of their own ---- */

/* Keys turn by `positions`, values are copied. Shapes: keys [rows, kv_heads, key_dim], values [rows, kv_heads,
   value_dim], outputs alike. */
typedef struct {
  size_t size;
  int64_t positions; /* may be negative */
  hypic_tensor keys;
  hypic_tensor values;
  hypic_tensor keys_out;
  hypic_tensor values_out;
} hypic_moved_keys;

/* End states turn by `positions` on their key axis; the scalar operators of such layers stay as they are. Shapes: in,
   out [value_heads, Dk, Dv]; `out` may be `in`. */
typedef struct {
  size_t size;
  int64_t positions;
  hypic_tensor in;
  hypic_tensor out;
} hypic_moved_states;

/* Of an attention layer; of a linear layer. Layers without a rotary embedding only copy. No output may start where an
   output or another's input does. */
HYPIC_C_API hypic_status hypic_rebase_keys(hypic_model const* model, int32_t layer, hypic_moved_keys const* moves,
                                           int64_t count, hypic_exec const* exec);
HYPIC_C_API hypic_status hypic_rebase(hypic_model const* model, int32_t layer, hypic_moved_states const* moves,
                                      int64_t count, hypic_exec const* exec);

/* ---- the second pass: a batch of requests ---- */

enum { HYPIC_CACHED = 0, HYPIC_FRESH = 1 };

typedef struct {
  size_t size;
  int32_t kind;
  int32_t const* tokens;
  int64_t token_count;
  hypic_key key; /* of a cached span */
} hypic_span;

typedef struct {
  size_t size;
  hypic_span const* spans;
  int64_t span_count;
  int32_t seam_rows;
  int64_t generated_tokens;
  int64_t preceding_tokens;
  int32_t initial_slot; /* -1: nothing precedes */
  int32_t final_slot;   /* -1: nowhere */
} hypic_request;

HYPIC_C_API hypic_status hypic_batch_create(hypic_model const* model, hypic_request const* requests, int64_t count,
                                            hypic_batch** batch);
HYPIC_C_API void hypic_batch_destroy(hypic_batch* batch);
HYPIC_C_API int64_t hypic_batch_row_count(hypic_batch const* batch);
/* The rows to forward. Shapes: tokens, positions [hypic_batch_row_count]. */
HYPIC_C_API void hypic_batch_rows(hypic_batch const* batch, int32_t* tokens, int64_t* positions);
HYPIC_C_API int64_t hypic_batch_record_count(hypic_batch const* batch);
HYPIC_C_API hypic_key hypic_batch_record(hypic_batch const* batch, int64_t index);
/* Convolution runs, one a span: run i is rows [first, first + rows) after tails[i]. */
HYPIC_C_API int64_t hypic_batch_run_count(hypic_batch const* batch);
HYPIC_C_API void hypic_batch_run(hypic_batch const* batch, int64_t index, int64_t* first_row, int64_t* rows);

/* Shapes: records, blocks [hypic_batch_record_count], in its order; both outlive the assembler. */
HYPIC_C_API hypic_status hypic_assembler_create(hypic_model const* model, hypic_batch const* batch,
                                                hypic_record const* const* records, void const* const* blocks,
                                                int64_t state_slots, hypic_assembler** assembler);
HYPIC_C_API void hypic_assembler_destroy(hypic_assembler* assembler);
HYPIC_C_API int64_t hypic_assembler_workspace_bytes(hypic_assembler const* assembler, int32_t threads);
/* Shapes: raw [rows, channels], pool [slots, K-1, channels], tails [runs, K-1, channels]. */
HYPIC_C_API hypic_status hypic_assembler_tails(hypic_assembler const* assembler, int32_t layer, hypic_tensor raw,
                                               hypic_tensor pool, hypic_tensor tails, hypic_exec const* exec);
/* Shapes: o [rows, value_heads, Dv], states [slots, value_heads, Dk, Dv]. */
HYPIC_C_API hypic_status hypic_assembler_linear(hypic_assembler const* assembler, int32_t layer, hypic_rows const* rows,
                                                hypic_tensor o, hypic_tensor states, hypic_exec const* exec);
/* Shapes: q, k, v as above at true positions; keys, values [requests], each [positions, kv_heads, dim]; o. */
HYPIC_C_API hypic_status hypic_assembler_attention(hypic_assembler const* assembler, int32_t layer, hypic_tensor q,
                                                   hypic_tensor k, hypic_tensor v, hypic_tensor const* keys,
                                                   hypic_tensor const* values, hypic_tensor o, hypic_exec const* exec);

#ifdef __cplusplus
}
#endif

#endif
