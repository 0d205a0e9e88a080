// SPDX-License-Identifier: Apache-2.0
#include "hypic/segment/seam_attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "core/calls.hpp"
#include "core/exponential.hpp"
#include "core/parallel.hpp"
#include "core/scratch.hpp"
#include "core/shapes.hpp"

namespace hypic::inline v0 {
namespace {

constexpr std::int64_t key_block = 64;
/// Queries that read a block of keys together. It makes no bits: every query has sums of its own.
constexpr std::int64_t query_block = 32;

/// A weight of exp(-64) to the largest one's 1 is lost in fp32 whatever the number of keys. Products with smaller ones
/// could be subnormal, which takes processors many times as long.
constexpr double negligible = -64.0;
constexpr double infinity = std::numeric_limits<double>::infinity();

struct inputs {
  attention_plan const& plan;
  tensor_view<float const, 3> q;
  std::span<std::int64_t const> positions;
  std::span<key_value_view const> caches;
  std::span<float const> sink_logits;
};

struct outputs {
  tensor_view<float, 3> o;
  tensor_view<float, 2> lse;
};

/// One query on its way through the keys.
struct query {
  float const* q;
  std::int64_t row, head;
  std::int64_t first_key, end_key;  ///< the keys that it sees
  double maximum;                   ///< of the scores and the sink so far
  double sum;                       ///< of exp(score - maximum)
  double* values;                   ///< the values so far, weighted alike
};

/// What one worker needs for one task.
struct task_memory {
  query* queries;  // [query_block]
  double* values;  // [query_block, value_dim]
  float* keys;     // [key_dim, key_block]: a block, transposed

  static std::int64_t bytes(attention_plan const& plan) noexcept {
    return scratch_bytes<query>(query_block) + scratch_bytes<double>(query_block * plan.value_dim) +
           scratch_bytes<float>(plan.key_dim * key_block);
  }
  static task_memory from(attention_plan const& plan, std::byte* memory) noexcept {
    scratch room({memory, static_cast<std::size_t>(bytes(plan))});
    task_memory taken{};
    taken.queries = room.take<query>(query_block);
    taken.values = room.take<double>(query_block * plan.value_dim);
    taken.keys = room.take<float>(plan.key_dim * key_block);
    return taken;
  }
};

/// Keys or values of one head of one request, one row a key.
struct head_rows {
  float const* data;
  std::int64_t stride;

  head_rows(tensor_view<float const, 3> rows, std::int64_t head) noexcept
      : data(rows.data + head * rows.stride[1]), stride(rows.stride[0]) {}
  float const* row(std::int64_t key) const noexcept { return data + key * stride; }
};

/// out[i] += sum over r of weights[r] * matrix[r][i]. Eight rows at a time are multiplied and summed in fp32, as a tree;
/// these sums are added up in fp64. In fp32 throughout, scores of size 25 or thousands of keys would cost the accuracy.
void add_weighted_rows(float const* weights, float const* matrix, std::int64_t stride, std::int64_t rows,
                       std::int64_t width, double* __restrict out) noexcept {
  std::int64_t r = 0;
  for (; r + 8 <= rows; r += 8) {
    float const* const w = weights + r;
    float const* const m = matrix + r * stride;
    for (std::int64_t i = 0; i < width; ++i) {
      float const early = (w[0] * m[i] + w[1] * m[stride + i]) + (w[2] * m[2 * stride + i] + w[3] * m[3 * stride + i]);
      float const late =
          (w[4] * m[4 * stride + i] + w[5] * m[5 * stride + i]) + (w[6] * m[6 * stride + i] + w[7] * m[7 * stride + i]);
      out[i] += static_cast<double>(early + late);
    }
  }
  for (; r < rows; ++r) {
    for (std::int64_t i = 0; i < width; ++i) out[i] += static_cast<double>(weights[r] * matrix[r * stride + i]);
  }
}

/// Folds a block's numbers in one fixed order that vectorises.
template <class T, class Fn>
T fold_block(std::array<T, key_block> const& numbers, Fn const& fn) noexcept {
  std::array<T, 8> lanes;
  std::copy_n(numbers.begin(), lanes.size(), lanes.begin());
  for (std::size_t j = lanes.size(); j < numbers.size(); j += lanes.size()) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] = fn(lanes[lane], numbers[j + lane]);
  }
  for (std::size_t half = lanes.size() / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] = fn(lanes[lane], lanes[lane + half]);
  }
  return lanes[0];
}

/// Scores of the keys [first, end) of a transposed block; -inf for the others.
std::array<double, key_block> score_block(attention_plan const& plan, float const* q, float const* keys,
                                          std::int64_t first, std::int64_t end) noexcept {
  std::array<double, key_block> scores;
  scores.fill(-infinity);
  std::fill(scores.begin() + first, scores.begin() + end, 0.0);
  add_weighted_rows(q, keys + first, key_block, plan.key_dim, end - first, scores.data() + first);
  double const limit = static_cast<double>(plan.soft_cap);
  for (auto j = first; j < end; ++j) {
    double& score = scores[static_cast<std::size_t>(j)];
    score *= static_cast<double>(plan.scale);
    if (limit > 0.0) score = limit * std::tanh(score / limit);
  }
  return scores;
}

/// Takes the keys [base + first, base + end) into account.
void attend(attention_plan const& plan, query& one, std::int64_t base, std::int64_t first, std::int64_t end,
            head_rows const& values, task_memory const& memory) noexcept {
  auto const scores = score_block(plan, one.q, memory.keys, first, end);
  double const maximum =
      std::max(one.maximum, fold_block(scores, [](double left, double right) { return std::max(left, right); }));
  std::array<float, key_block> weights;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    double const below = scores[j] - maximum;
    weights[j] = exp_nonpositive(static_cast<float>(below < negligible ? -infinity : below));
  }
  float const sum = fold_block(weights, [](float left, float right) { return left + right; });

  double const kept = std::exp(one.maximum - maximum);
  one.maximum = maximum;
  one.sum = one.sum * kept + static_cast<double>(sum);
  for (std::int64_t d = 0; d < plan.value_dim; ++d) one.values[d] *= kept;
  add_weighted_rows(weights.data() + first, values.row(base + first), values.stride, end - first, plan.value_dim,
                    one.values);
}

void transpose_block(head_rows const& keys, std::int64_t base, std::int64_t count, std::int64_t dim,
                     float* __restrict out) noexcept {
  for (std::int64_t j = 0; j < count; ++j) {
    float const* const key = keys.row(base + j);
    for (std::int64_t d = 0; d < dim; ++d) out[d * key_block + j] = key[d];
  }
}

query start_query(inputs const& in, std::int64_t row, std::int64_t head, double* values) noexcept {
  auto const position = in.positions[static_cast<std::size_t>(row)];
  double const sink =
      in.sink_logits.empty() ? -infinity : static_cast<double>(in.sink_logits[static_cast<std::size_t>(head)]);
  std::fill_n(values, in.plan.value_dim, 0.0);
  query one{};
  one.q = in.q[row][head].data;
  one.row = row;
  one.head = head;
  one.first_key = in.plan.window > 0 ? std::max<std::int64_t>(0, position - in.plan.window + 1) : 0;
  one.end_key = position + 1;
  one.maximum = sink;
  one.sum = sink == -infinity ? 0.0 : 1.0;
  one.values = values;
  return one;
}

void finish_query(query const& one, std::int64_t value_dim, outputs const& out) noexcept {
  float* const o = out.o[one.row][one.head].data;
  for (std::int64_t d = 0; d < value_dim; ++d) o[d] = static_cast<float>(one.values[d] / one.sum);
  if (!out.lse.empty()) {
    out.lse(one.row, one.head) = static_cast<float>(one.maximum + std::log(one.sum));
  }
}

std::int64_t group_size(attention_plan const& plan) noexcept { return plan.query_heads / plan.kv_heads; }

/// Queries of one request that read the same keys, counted row by row, heads within.
std::int64_t queries_of(attention_plan const& plan, attention_sequence const& sequence) noexcept {
  return sequence.rows * group_size(plan);
}

/// Runs queries [first, end) of one request and one kv head.
void attend_queries(inputs const& in, outputs const& out, std::size_t sequence, std::int64_t kv_head,
                    std::int64_t first, std::int64_t end, task_memory const& memory) noexcept {
  auto const& plan = in.plan;
  auto const group = group_size(plan);
  head_rows const keys(in.caches[sequence].keys, kv_head);
  head_rows const values(in.caches[sequence].values, kv_head);

  std::span<query> const queries(memory.queries, static_cast<std::size_t>(end - first));
  std::int64_t first_key = std::numeric_limits<std::int64_t>::max();
  std::int64_t end_key = 0;
  for (std::int64_t i = first; i < end; ++i) {
    auto& one = queries[static_cast<std::size_t>(i - first)];
    one = start_query(in, plan.sequences[sequence].first_row + i / group, kv_head * group + i % group,
                      memory.values + (i - first) * plan.value_dim);
    first_key = std::min(first_key, one.first_key);
    end_key = std::max(end_key, one.end_key);
  }
  for (auto base = first_key / key_block * key_block; base < end_key; base += key_block) {
    transpose_block(keys, base, std::min(key_block, end_key - base), plan.key_dim, memory.keys);
    for (auto& one : queries) {
      auto const seen = std::max<std::int64_t>(one.first_key - base, 0);
      auto const unseen = std::min(one.end_key - base, key_block);
      if (seen < unseen) attend(plan, one, base, seen, unseen, values, memory);
    }
  }
  for (auto const& one : queries) finish_query(one, plan.value_dim, out);
}

std::int64_t tasks_of(attention_plan const& plan, attention_sequence const& sequence) noexcept {
  return (queries_of(plan, sequence) + query_block - 1) / query_block * plan.kv_heads;
}

status check_sequence(attention_sequence const& sequence, std::int64_t total_rows) noexcept {
  if (sequence.first_row < 0) {
    return {status::invalid_shape, "sequences.first_row", sequence.first_row, status::relation::at_least, 0};
  }
  if (sequence.rows < 0) return {status::invalid_shape, "sequences.rows", sequence.rows, status::relation::at_least, 0};
  if (sequence.keys < 0) return {status::invalid_shape, "sequences.keys", sequence.keys, status::relation::at_least, 0};
  if (sequence.first_row > total_rows) {
    return {status::invalid_shape, "sequences.first_row", sequence.first_row, status::relation::at_most, total_rows};
  }
  if (sequence.rows > total_rows - sequence.first_row) {
    return {status::invalid_shape, "sequences.rows", sequence.rows, status::relation::at_most,
            total_rows - sequence.first_row};
  }
  return status::ok;
}

status check_cache(attention_plan const& plan, attention_sequence const& sequence,
                   key_value_view const& cache) noexcept {
  auto const expect_rows = [&](char const* argument, tensor_view<float const, 3> rows, std::int64_t dim) -> status {
    if (auto const s = expect_extent(argument, rows, 0, sequence.keys); s != status::ok) return s;
    return expect_shape(argument, rows.rows(0, sequence.keys), {sequence.keys, plan.kv_heads, dim});
  };
  return first_failure(expect_rows("caches.keys", cache.keys, plan.key_dim),
                       expect_rows("caches.values", cache.values, plan.value_dim));
}

status check_positions(attention_sequence const& sequence, std::span<std::int64_t const> positions) noexcept {
  auto const own =
      positions.subspan(static_cast<std::size_t>(sequence.first_row), static_cast<std::size_t>(sequence.rows));
  for (auto const position : own) {
    if (position < 0) return {status::out_of_range, "positions", position, status::relation::at_least, 0};
    if (position >= sequence.keys) {
      return {status::out_of_range, "positions", position, status::relation::at_most, sequence.keys - 1};
    }
  }
  return status::ok;
}

status expect_count(char const* argument, std::size_t found, std::int64_t expected) noexcept {
  auto const count = static_cast<std::int64_t>(found);
  if (count == expected) return status::ok;
  return {status::invalid_shape, argument, count, status::relation::equal_to, expected};
}

status check(inputs const& in, outputs const& out, host_exec const& ex) noexcept {
  auto const& plan = in.plan;
  if (auto const s = validate(plan); s != status::ok) return s;
  auto const checked = first_failure(
      expect_shape("q", in.q, {plan.total_rows, plan.query_heads, plan.key_dim}),
      expect_count("positions", in.positions.size(), plan.total_rows),
      expect_count("caches", in.caches.size(), static_cast<std::int64_t>(plan.sequences.size())),
      in.sink_logits.empty() ? status::ok : expect_count("sink_logits", in.sink_logits.size(), plan.query_heads),
      expect_shape("o", out.o, {plan.total_rows, plan.query_heads, plan.value_dim}),
      expect_apart("o overlaps q", out.o, in.q),
      out.lse.empty() ? status::ok : expect_shape("lse", out.lse, {plan.total_rows, plan.query_heads}));
  if (checked != status::ok) return checked;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    auto const s = first_failure(check_cache(plan, plan.sequences[i], in.caches[i]),
                                 expect_apart("o overlaps caches", out.o, in.caches[i].keys, in.caches[i].values),
                                 check_positions(plan.sequences[i], in.positions));
    if (s != status::ok) return s;
  }
  return expect_exec(ex, plan.workspace_bytes(ex.threads));
}

}  // namespace

std::int64_t attention_plan::workspace_bytes(int threads) const noexcept {
  return scratch_alignment + scratch_bytes<std::int64_t>(static_cast<std::int64_t>(sequences.size())) +
         workers_of(threads) * task_memory::bytes(*this);
}

status validate(attention_plan const& plan) noexcept {
  auto const at_least = [](char const* argument, std::int64_t found, std::int64_t least) -> status {
    if (found >= least) return status::ok;
    return {status::invalid_shape, argument, found, status::relation::at_least, least};
  };
  auto const checked =
      first_failure(at_least("query_heads", plan.query_heads, 1), at_least("kv_heads", plan.kv_heads, 1),
                    at_least("key_dim", plan.key_dim, 1), at_least("value_dim", plan.value_dim, 1),
                    at_least("total_rows", plan.total_rows, 0));
  if (checked != status::ok) return checked;
  if (plan.query_heads % plan.kv_heads != 0) {
    return {status::invalid_shape, "query_heads", plan.query_heads, status::relation::multiple_of, plan.kv_heads};
  }
  if (!std::isfinite(plan.scale)) return {status::invalid_argument, "scale"};
  if (!std::isfinite(plan.soft_cap) || plan.soft_cap < 0.0f) return {status::invalid_argument, "soft_cap"};
  if (plan.window < 0) return {status::invalid_argument, "window", plan.window, status::relation::at_least, 0};
  for (auto const& sequence : plan.sequences) {
    if (auto const s = check_sequence(sequence, plan.total_rows); s != status::ok) return s;
  }
  auto const rows_of = [&](std::int64_t i) {
    auto const& sequence = plan.sequences[static_cast<std::size_t>(i)];
    return std::pair{sequence.first_row, sequence.rows};
  };
  if (!share_no_row(static_cast<std::int64_t>(plan.sequences.size()), rows_of))
    return {status::invalid_shape, "sequences: two that share a row"};
  return status::ok;
}

status seam_attention(attention_plan const& plan, tensor_view<float const, 3> q,
                      std::span<std::int64_t const> positions, std::span<key_value_view const> caches,
                      std::span<float const> sink_logits, tensor_view<float, 3> o, tensor_view<float, 2> lse,
                      host_exec const& ex) {
  inputs const in{plan, q, positions, caches, sink_logits};
  outputs const out{o, lse};
  if (auto const s = check(in, out, ex); s != status::ok) return s;
  auto const told = tell(ex, "segment.attention");

  scratch room(ex.workspace);
  std::span<std::int64_t> const ends(room.take<std::int64_t>(static_cast<std::int64_t>(plan.sequences.size())),
                                     plan.sequences.size());
  std::int64_t tasks = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) ends[i] = tasks += tasks_of(plan, plan.sequences[i]);
  auto const bytes = task_memory::bytes(plan);
  std::byte* const memory = room.take<std::byte>(bytes * workers_of(ex.threads));

  parallel_for(ex.threads, tasks, [&](std::int64_t task, int worker) {
    auto const sequence = static_cast<std::size_t>(std::ranges::upper_bound(ends, task) - ends.begin());
    auto const before = sequence == 0 ? 0 : ends[sequence - 1];
    auto const first = (task - before) / plan.kv_heads * query_block;
    auto const end = std::min(first + query_block, queries_of(plan, plan.sequences[sequence]));
    attend_queries(in, out, sequence, (task - before) % plan.kv_heads, first, end,
                   task_memory::from(plan, memory + worker * bytes));
  });
  return status::ok;
}

std::int64_t attention_block() noexcept { return key_block; }

}  // namespace hypic::inline v0
