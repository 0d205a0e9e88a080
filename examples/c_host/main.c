/* SPDX-License-Identifier: Apache-2.0 */
/* hypic from C: the host's own store is held against the contract; then a segment is computed alone, published in it,
   found again and reused in front of fresh tokens. The state that it leaves is that of the same rows run as one. */
#include <hypic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shelf.h"

enum { CAPACITY = 1 << 20 };
enum { HEADS = 2, DIM = 16, SEGMENT = 60, QUESTION = 7, PROMPT = SEGMENT + QUESTION, SEAM = 4, THREADS = 2 };
enum { STATE = HEADS * DIM * DIM };

static void require(hypic_status status) {
  char text[256];
  if (status.code == HYPIC_OK) return;
  hypic_message(status, text, sizeof text);
  fprintf(stderr, "%s\n", text);
  exit(1);
}

/* [begin contract] */
static hypic_store* make_shelf(void* context) {
  (void)context;
  return shelf_create(CAPACITY);
}

static int damage_shelf(void* context, hypic_store* store, const hypic_lookup* of) {
  (void)context;
  return shelf_damage(store, of);
}

struct count {
  int kept, all;
};

static void tell_clause(void* context, const hypic_clause_report* report) {
  static const char* const outcomes[] = {"kept", "broken", "skipped"};
  struct count* const count = context;
  ++count->all;
  if (report->outcome == HYPIC_KEPT) {
    ++count->kept;
  } else {
    printf("%s: %s: %s (%s)\n", outcomes[report->outcome], report->verb, report->clause, report->found);
  }
}

/* Whether the store keeps the contract; prints the clauses that it breaks, and those that were not checked. */
static int keeps_contract(void) {
  hypic_store_under_test subject = {sizeof subject};
  struct count count = {0, 0};
  subject.make = make_shelf;
  subject.capacity_bytes = CAPACITY;
  subject.damage = damage_shelf;
  require(hypic_check_store_contract(&subject, tell_clause, &count));
  printf("%d of %d clauses kept\n", count.kept, count.all);
  return count.kept == count.all && count.all > 0;
}
/* [end contract] */

static hypic_tensor tensor(float* data, int64_t rows, int64_t heads, int64_t width) {
  hypic_tensor made = {data, 3, {rows, heads, width, 0}, {heads * width, width, 1, 0}};
  return made;
}

/* What the layer's projections would give for each token of the prompt. */
static float q[PROMPT * HEADS * DIM], k[PROMPT * HEADS * DIM], v[PROMPT * HEADS * DIM], gates[PROMPT * HEADS * DIM];

/* Rows of that table, packed for one call. */
struct packed {
  float q[PROMPT * HEADS * DIM], k[PROMPT * HEADS * DIM], v[PROMPT * HEADS * DIM], gates[PROMPT * HEADS * DIM];
};

static hypic_rows pack(struct packed* to, const int64_t* positions, int64_t count) {
  hypic_rows rows = {sizeof rows};
  int64_t i;
  for (i = 0; i < count; ++i) {
    const size_t from = (size_t)positions[i] * HEADS * DIM, at = (size_t)i * HEADS * DIM, bytes = HEADS * DIM * sizeof(float);
    memcpy(to->q + at, q + from, bytes);
    memcpy(to->k + at, k + from, bytes);
    memcpy(to->v + at, v + from, bytes);
    memcpy(to->gates + at, gates + from, bytes);
  }
  rows.q = tensor(to->q, count, HEADS, DIM);
  rows.k = tensor(to->k, count, HEADS, DIM);
  rows.v = tensor(to->v, count, HEADS, DIM);
  rows.gates = tensor(to->gates, count, HEADS, DIM);
  return rows;
}

static hypic_exec lend(int64_t bytes) {
  hypic_exec exec = {sizeof exec};
  exec.workspace = malloc(bytes > 0 ? (size_t)bytes : 1);
  exec.workspace_bytes = (size_t)bytes;
  exec.threads = THREADS;
  return exec;
}

/* The state that a prompt of spans leaves; `record` and `block` serve its cached span. */
static void assemble(const hypic_model* model, const hypic_span* spans, int64_t count, const hypic_record* record,
                     const void* block, float* state) {
  static struct packed packed;
  static float o[PROMPT * HEADS * DIM];
  int32_t tokens[PROMPT];
  int64_t positions[PROMPT];
  hypic_request request = {sizeof request};
  hypic_batch* batch;
  hypic_assembler* assembler;
  hypic_exec exec;
  hypic_rows rows;
  hypic_tensor states = {NULL, 4, {1, HEADS, DIM, DIM}, {STATE, DIM * DIM, DIM, 1}};

  request.spans = spans;
  request.span_count = count;
  request.seam_rows = SEAM;
  request.initial_slot = -1;
  request.final_slot = 0;
  require(hypic_batch_create(model, &request, 1, &batch));
  hypic_batch_rows(batch, tokens, positions);
  rows = pack(&packed, positions, hypic_batch_row_count(batch));
  require(hypic_assembler_create(model, batch, &record, &block, 1, &assembler));
  exec = lend(hypic_assembler_workspace_bytes(assembler, THREADS));
  states.data = state;
  require(hypic_assembler_linear(assembler, 0, &rows, tensor(o, hypic_batch_row_count(batch), HEADS, DIM), states, &exec));
  printf("%lld of %d tokens forwarded\n", (long long)hypic_batch_row_count(batch), PROMPT);
  free(exec.workspace);
  hypic_assembler_destroy(assembler);
  hypic_batch_destroy(batch);
}

int main(void) {
  static float reused[STATE], whole[STATE];
  static struct packed packed;
  int32_t prompt[PROMPT];
  int64_t positions[PROMPT], bytes;
  int32_t major, minor, patch;
  hypic_layer layer = {sizeof layer};
  hypic_model_info info = {sizeof info};
  hypic_model* model;
  hypic_record* record;
  hypic_store* store;
  hypic_identity identity = {sizeof identity};
  hypic_key key;
  hypic_rows rows;
  hypic_tensor none = {NULL, 0, {0}, {0}};
  hypic_exec exec;
  hypic_lookup lookup = {sizeof lookup};
  hypic_publication publication = {sizeof publication};
  hypic_answer answer;
  hypic_status outcome;
  hypic_span spans[2];
  hypic_digest* digests;
  uint64_t ticket;
  char name[65];
  void* block;
  double difference = 0.0, size = 0.0;
  int i;

  hypic_version(&major, &minor, &patch);
  printf("hypic %d.%d.%d\n", major, minor, patch);
  if (!keeps_contract()) return 1;
  srand(1);
  for (i = 0; i < PROMPT * HEADS * DIM; ++i) {
    q[i] = (float)rand() / RAND_MAX - 0.5f;
    k[i] = (float)rand() / RAND_MAX - 0.5f;
    v[i] = (float)rand() / RAND_MAX - 0.5f;
    gates[i] = -0.05f * (float)rand() / RAND_MAX;
  }
  for (i = 0; i < PROMPT; ++i) {
    prompt[i] = i;
    positions[i] = i;
  }

  layer.kind = HYPIC_LINEAR;
  layer.family = HYPIC_GLA;
  layer.key_heads = layer.value_heads = HEADS;
  layer.key_dim = layer.value_dim = DIM;
  layer.q_scale = 1.0f;
  info.layers = &layer;
  info.layer_count = 1;
  info.head_rows = 8;
  require(hypic_model_create(&info, &model));
  require(hypic_model_fingerprint(model, "the host's weights", name));
  identity.tokens = prompt;
  identity.token_count = SEGMENT;
  identity.model = name;
  require(hypic_make_key(&identity, &key));
  require(hypic_record_create(model, SEGMENT, &record));
  store = shelf_create(CAPACITY);
  if (store == NULL) return 1;

  /* The first pass: the segment alone. */
  block = calloc(1, (size_t)hypic_record_bytes(record));
  rows = pack(&packed, positions, SEGMENT);
  require(hypic_segment_workspace_bytes(model, 0, SEGMENT, THREADS, &bytes));
  exec = lend(bytes);
  require(hypic_segment_linear(model, 0, &rows, none, record, block, &exec));
  free(exec.workspace);
  digests = malloc((size_t)hypic_record_part_count(record) * sizeof *digests);
  require(hypic_record_digests(record, block, digests));
  publication.key = key;
  publication.tokens = prompt;
  publication.token_count = SEGMENT;
  publication.record = record;
  publication.block = block;
  publication.bytes = (size_t)hypic_record_bytes(record);
  publication.digests = digests;
  publication.digest_count = hypic_record_part_count(record);
  publication.value = SEGMENT;
  require(hypic_store_publish(store, &publication, 1, &outcome));
  free(digests);
  free(block);

  /* The second pass: the record in front of a question. */
  lookup.key = key;
  lookup.tokens = prompt;
  lookup.token_count = SEGMENT;
  lookup.record = record;
  require(hypic_store_begin(store, &lookup, 1, &ticket));
  do require(hypic_store_poll(store, ticket, &answer, 1));
  while (answer.state == HYPIC_PENDING);
  if (answer.state != HYPIC_HIT) {
    fprintf(stderr, "a miss, reason %d\n", answer.reason);
    return 1;
  }
  memset(spans, 0, sizeof spans);
  spans[0].size = spans[1].size = sizeof *spans;
  spans[0].kind = HYPIC_CACHED;
  spans[0].tokens = prompt;
  spans[0].token_count = SEGMENT;
  spans[0].key = key;
  spans[1].kind = HYPIC_FRESH;
  spans[1].tokens = prompt + SEGMENT;
  spans[1].token_count = QUESTION;
  assemble(model, spans, 2, record, answer.block, reused);
  require(hypic_store_release(store, ticket, NULL, NULL));

  spans[0].kind = HYPIC_FRESH;
  assemble(model, spans, 2, NULL, NULL, whole);
  for (i = 0; i < STATE; ++i) {
    difference += pow((double)reused[i] - whole[i], 2);
    size += pow(whole[i], 2);
  }
  printf("states differ by %.1e\n", sqrt(difference / size));

  hypic_store_destroy(store);
  hypic_record_destroy(record);
  hypic_model_destroy(model);
  return sqrt(difference / size) <= 1e-5 ? 0 : 1;
}
