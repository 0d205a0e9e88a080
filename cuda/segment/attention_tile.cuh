// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <cstdint>

#include "cuda/core/launch.cuh"
#include "cuda/segment/attention_kernels.hpp"

namespace hypic::inline v0 {

inline constexpr unsigned whole_warp = 0xffffffffu;

/// Keys, or other rows, [first, end); none: both 0.
struct key_range {
  int first;
  int end;

  __device__ bool holds(int key) const { return key >= first && key < end; }
  __device__ bool empty() const { return end <= first; }
  /// The part in [begin, begin + count), counted from `begin`.
  __device__ key_range within(int begin, int count) const {
    key_range const part{max(first - begin, 0), min(end - begin, count)};
    return part.empty() ? key_range{} : part;
  }
};

/// Consecutive queries of one request that read one kv head. The queries of a request are its rows times the query heads
/// of the group, heads within. Made by whole warps.
class query_tile {
 public:
  /// `index` counts kv heads within tiles.
  __device__ query_tile(attention_call const& call, unsigned index, int size)
      : call_(call), kv_head_(static_cast<int>(index) % call.plan.kv_heads) {
    find(static_cast<int>(index) / call.plan.kv_heads, size);
  }

  __device__ int queries() const { return queries_; }  ///< 0: the call's requests need fewer tiles
  __device__ int kv_head() const { return kv_head_; }
  __device__ attention_request const& request() const { return request_; }
  __device__ std::int64_t row(int query) const {
    return request_.first_row + static_cast<unsigned>(first_ + query) / static_cast<unsigned>(call_.group);
  }
  __device__ int head(int query) const {
    auto const group = static_cast<unsigned>(call_.group);
    return kv_head_ * call_.group + static_cast<int>(static_cast<unsigned>(first_ + query) % group);
  }
  /// The keys that a query sees: none where its position is out of range.
  __device__ key_range seen(int query) const {
    auto const& plan = call_.plan;
    auto const position = call_.tables.positions[row(query)];
    if (position < 0 || position >= min(request_.key_rows, plan.most_keys)) return {};
    int const own = static_cast<int>(position);
    bool const all = plan.window == 0 || plan.window > position;
    return {all ? 0 : own + 1 - static_cast<int>(plan.window), own + 1};
  }
  /// Where the call's arrays [total_rows, query_heads] hold the query.
  __device__ std::int64_t place(int query) const { return row(query) * call_.plan.query_heads + head(query); }

 private:
  __device__ int rows_of(std::int64_t request) const {
    if (request >= call_.plan.requests) return 0;
    auto const& one = call_.tables.requests[request];
    if (one.first_row < 0 || one.first_row > call_.plan.total_rows) return 0;
    return static_cast<int>(max(std::int64_t{0}, min(one.rows, call_.plan.total_rows - one.first_row)));
  }

  __device__ void find(int tile, int size) {
    int const lane = static_cast<int>(threadIdx.x % 32);
    for (std::int64_t first = 0; first < call_.plan.requests; first += 32) {
      int const queries = rows_of(first + lane) * call_.group;
      int const tiles = (queries + size - 1) / size;
      int end = tiles;  // of the tiles up to this lane's request
      for (int step = 1; step < 32; step *= 2) {
        int const before = __shfl_up_sync(whole_warp, end, step);
        if (lane >= step) end += before;
      }
      auto const owners = __ballot_sync(whole_warp, tile < end);
      if (owners != 0) {
        int const owner = __ffs(static_cast<int>(owners)) - 1;
        first_ = (tile - __shfl_sync(whole_warp, end - tiles, owner)) * size;
        queries_ = min(size, __shfl_sync(whole_warp, queries, owner) - first_);
        request_ = call_.tables.requests[first + owner];
        return;
      }
      tile -= __shfl_sync(whole_warp, end, 31);
    }
  }

  attention_call const& call_;
  attention_request request_{};
  int kv_head_;
  int first_ = 0;
  int queries_ = 0;
};

/// Keys of a split that some query of a tile sees, and those that every one sees.
struct tile_range {
  key_range some{INT_MAX, 0};
  key_range every{0, INT_MAX};

  __device__ void add(key_range const& seen) {
    if (!seen.empty()) some = {min(some.first, seen.first), max(some.end, seen.end)};
    every = {max(every.first, seen.first), min(every.end, seen.end)};
  }
  __device__ bool all_see(int first, int end) const { return first >= every.first && end <= every.end; }
};

/// Joins what all threads of a block added. `shared` is memory for it.
__device__ inline tile_range join(tile_range const& own, int (&shared)[4]) {
  if (threadIdx.x == 0) shared[0] = INT_MAX, shared[1] = 0, shared[2] = 0, shared[3] = INT_MAX;
  __syncthreads();
  int const first = __reduce_min_sync(whole_warp, own.some.first);
  int const end = __reduce_max_sync(whole_warp, own.some.end);
  int const every_first = __reduce_max_sync(whole_warp, own.every.first);
  int const every_end = __reduce_min_sync(whole_warp, own.every.end);
  if (threadIdx.x % 32 == 0) {
    atomicMin(&shared[0], first);
    atomicMax(&shared[1], end);
    atomicMax(&shared[2], every_first);
    atomicMin(&shared[3], every_end);
  }
  __syncthreads();
  return {{shared[0], shared[1]}, {shared[2], shared[3]}};
}

/// Keys or values of one request and one kv head.
template <class T>
class cache_rows {
 public:
  __device__ cache_rows(void const* data, cache_strides const& strides, std::int32_t const* pages,
                        std::int64_t page_size, int head)
      : data_(static_cast<T const*>(data) + head * strides.head),
        pages_(page_size > 0 ? pages : nullptr),
        page_(strides.page),
        token_(strides.token),
        page_size_(static_cast<unsigned>(page_size)) {}

  __device__ bool in_pages() const { return pages_ != nullptr; }
  __device__ T const* in_piece(int key) const { return data_ + key * token_; }
  __device__ T const* in_page(int key) const {
    auto const page = static_cast<unsigned>(key) / page_size_;
    return data_ + __ldg(pages_ + page) * page_ + (static_cast<unsigned>(key) - page * page_size_) * token_;
  }
  __device__ T const* row(int key) const { return in_pages() ? in_page(key) : in_piece(key); }

 private:
  T const* data_;
  std::int32_t const* pages_;
  std::int64_t page_, token_;
  unsigned page_size_;
};

template <class T>
__device__ cache_rows<T> keys_of(attention_call const& call, query_tile const& tile) {
  return {tile.request().keys, call.plan.keys, tile.request().pages, call.plan.page_size, tile.kv_head()};
}
template <class T>
__device__ cache_rows<T> values_of(attention_call const& call, query_tile const& tile) {
  return {tile.request().values, call.plan.values, tile.request().pages, call.plan.page_size, tile.kv_head()};
}

/// A query's result, made of its splits in order: the same operations for one split as for many.
class query_result {
 public:
  /// `largest`: of the scores of all splits.
  __device__ query_result(attention_call const& call, int head, float largest) {
    float const sink = call.tables.sink_logits == nullptr ? -INFINITY : call.tables.sink_logits[head];
    largest_ = fmaxf(largest, sink);
    total_ = sink == -INFINITY ? 0.0f : weight(sink);
  }
  /// The weight of a split: its values count as `fmaf(weight, value, so far)`.
  __device__ float add(float2 const& sums) {
    float const of_split = weight(sums.x);
    total_ = fmaf(of_split, sums.y, total_);
    return of_split;
  }
  __device__ float value(float weighted) const { return total_ == 0.0f ? 0.0f : weighted / total_; }
  __device__ float lse() const { return largest_ + logf(total_); }

 private:
  __device__ float weight(float score) const { return score == largest_ ? 1.0f : expf(score - largest_); }
  float largest_;
  float total_;
};

/// Where a tile's kernel writes one query: into o where the call has one split, else into the scratch.
template <class T>
class query_output {
 public:
  __device__ query_output(attention_call const& call, query_tile const& tile, int query, int split, float2 const& sums,
                          bool writes_sums)
      : result_(call, tile.head(query), sums.x) {
    auto const place = tile.place(query);
    auto const at = static_cast<std::int64_t>(split) * call.plan.total_rows * call.plan.query_heads + place;
    weight_ = result_.add(sums);
    if (call.split_o != nullptr) {
      partial_ = call.split_o + at * call.plan.value_dim;
      if (writes_sums) call.split_sums[at] = sums;
      return;
    }
    o_ = static_cast<T*>(call.tables.o) + tile.row(query) * call.plan.o.row + tile.head(query) * call.plan.o.head;
    if (writes_sums && call.tables.lse != nullptr) call.tables.lse[place] = result_.lse();
  }
  __device__ float* partial() const { return partial_; }  ///< null: `o` wants values
  __device__ T* o() const { return o_; }
  __device__ float value(float sum) const { return result_.value(fmaf(weight_, sum, 0.0f)); }

 private:
  query_result result_;
  float weight_;
  float* partial_ = nullptr;
  T* o_ = nullptr;
};

}  // namespace hypic::inline v0
