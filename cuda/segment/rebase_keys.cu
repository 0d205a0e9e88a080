// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/core/launch.cuh"
#include "cuda/segment/rebase_keys_kernel.hpp"

namespace hypic::inline v0 {
namespace {

constexpr int in_flight = rebase_keys_grid::in_flight;

struct stored_f32 {
  using element = std::uint32_t;
  static __device__ float value(element bits) { return __uint_as_float(bits); }
  static __device__ element rounded(float x) { return __float_as_uint(x); }
};
struct stored_f16 {
  using element = std::uint16_t;
  static __device__ float value(element bits) { return __half2float(__ushort_as_half(bits)); }
  static __device__ element rounded(float x) { return __half_as_ushort(__float2half_rn(x)); }
};
struct stored_bf16 {
  using element = std::uint16_t;
  static __device__ float value(element bits) { return __uint_as_float(static_cast<std::uint32_t>(bits) << 16); }
  static __device__ element rounded(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
};

/// `Width` neighbouring elements as they lie in memory: 16 bytes, or one.
template <class Stored, int Width>
using pack = std::conditional_t<Width == 1, typename Stored::element, uint4>;

template <class Stored, int Width>
__device__ void widen(pack<Stored, Width> const& from, float (&to)[Width]) {
  if constexpr (Width == 1) {
    to[0] = Stored::value(from);
  } else {
    constexpr int per_word = Width / 4;
    std::uint32_t const words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int e = 0; e < Width; ++e)
      to[e] = Stored::value(static_cast<typename Stored::element>(words[e / per_word] >> (e % per_word * 16)));
  }
}

template <class Stored, int Width>
__device__ pack<Stored, Width> narrow(float const (&from)[Width]) {
  if constexpr (Width == 1) {
    return Stored::rounded(from[0]);
  } else {
    constexpr int per_word = Width / 4;
    std::uint32_t words[4] = {};
#pragma unroll
    for (int e = 0; e < Width; ++e)
      words[e / per_word] |= static_cast<std::uint32_t>(Stored::rounded(from[e])) << (e % per_word * 16);
    return {words[0], words[1], words[2], words[3]};
  }
}

/// The turn of the `Width` elements of a key from dimension `at`: each is multiplied by a cosine, and its partner in the
/// pair, by a sine, is added.
template <bool Interleaved, int Width>
struct part_of_turn {
  static constexpr bool partners_within = Interleaved && Width > 1;
  bool turns = false;
  int partners = 0;  ///< where the partners are, in elements from here; not read where they are within
  float cosine[Width], sine[Width];

  __device__ part_of_turn(kv_shape const& shape, float const* angles, int at) {
    int const pairs = shape.rotary_pairs;
    if (angles == nullptr || at >= 2 * pairs) return;
    turns = true;
    if constexpr (Interleaved) {
      partners = at % 2 == 0 ? 1 : -1;
#pragma unroll
      for (int e = 0; e < Width; ++e) {
        cosine[e] = __ldg(angles + (at + e) / 2);
        auto const s = __ldg(angles + pairs + (at + e) / 2);
        sine[e] = (at + e) % 2 == 0 ? -s : s;
      }
    } else {
      bool const first = at < pairs;
      int const pair = first ? at : at - pairs;
      partners = first ? pairs : -pairs;
#pragma unroll
      for (int e = 0; e < Width; ++e) {
        cosine[e] = __ldg(angles + pair + e);
        auto const s = __ldg(angles + pairs + pair + e);
        sine[e] = first ? -s : s;
      }
    }
  }

  template <class Stored>
  __device__ pack<Stored, Width> turned(pack<Stored, Width> const& own, pack<Stored, Width> const& other) const {
    float x[Width], partner[Width], out[Width];
    widen<Stored, Width>(own, x);
    if constexpr (!partners_within) widen<Stored, Width>(other, partner);
#pragma unroll
    for (int e = 0; e < Width; ++e) {
      auto const y = partners_within ? x[e ^ (Width > 1 ? 1 : 0)] : partner[e];
      out[e] = __fmaf_rn(x[e], cosine[e], __fmul_rn(y, sine[e]));
    }
    return narrow<Stored, Width>(out);
  }
};

/// Where rows of a span go, from row `first` on.
class destination {
 public:
  __device__ destination(rebase_keys_plan const& plan, rebase_span const& span, std::int64_t first)
      : plan_(plan), pages_(span.pages), position_(span.first_position + first) {
    if (plan.pages.page_size == 0) return;
    auto const page = static_cast<std::uint64_t>(position_) / static_cast<std::uint64_t>(plan.pages.page_size);
    pages_ += page;
    position_ -= static_cast<std::int64_t>(page) * plan.pages.page_size;
  }

  /// Elements from the output's base to row `first + row`; below 0: it goes nowhere.
  __device__ std::int64_t offset(int row, placed_strides const& strides) const {
    if (plan_.pages.page_size == 0) return (position_ + row) * strides.row;
    auto const page_size = static_cast<std::uint32_t>(plan_.pages.page_size);
    auto const at = static_cast<std::uint32_t>(position_) + static_cast<std::uint32_t>(row);
    std::int64_t const page = __ldg(pages_ + at / page_size);
    if (page < 0 || page >= plan_.pages.count) return -1;
    return page * strides.page + at % page_size * strides.row;
  }

 private:
  rebase_keys_plan const& plan_;
  std::int32_t const* pages_;
  std::int64_t position_;  ///< of row `first`; within the first page where memory is paged
};

/// `Width` neighbouring elements of one head, in every row.
template <class Stored, int Width>
struct column {
  using element = typename Stored::element;
  element const* from;  ///< in the span's row 0
  element* to;          ///< in the destination's row 0
  std::int64_t from_row;
  placed_strides strides;
  bool is_key;
  int at;  ///< the first element's dimension

  /// `index` counts over the keys of all heads, then over the values.
  __device__ column(rebase_keys_plan const& plan, rebase_span const& span, int index) {
    int const keys = plan.shape.kv_heads * (plan.shape.key_dim / Width);
    is_key = index < keys;
    int const per_head = (is_key ? plan.shape.key_dim : plan.shape.value_dim) / Width;
    int const within = is_key ? index : index - keys;
    std::int64_t const head = within / per_head;
    at = within % per_head * Width;
    auto const& cached = is_key ? plan.cached_keys : plan.cached_values;
    strides = is_key ? plan.placed_keys : plan.placed_values;
    from_row = cached.row;
    from = static_cast<element const*>(is_key ? span.keys : span.values) + head * cached.head + at;
    to = static_cast<element*>(is_key ? span.keys_out : span.values_out) + head * strides.head + at;
  }
};

/// Rows [first, first + rows) of a span.
template <class Stored, bool Interleaved, int Width>
__device__ void place_rows(rebase_keys_plan const& plan, rebase_span const& span, std::int64_t first, int rows) {
  using packed = pack<Stored, Width>;
  using turn_part = part_of_turn<Interleaved, Width>;
  int const columns = plan.shape.kv_heads * (plan.shape.key_dim / Width + plan.shape.value_dim / Width);
  destination const place(plan, span, first);
  for (int index = static_cast<int>(threadIdx.x); index < columns; index += static_cast<int>(blockDim.x)) {
    column<Stored, Width> const part(plan, span, index);
    turn_part const turn(plan.shape, part.is_key ? span.angles : nullptr, part.at);
    auto const step = static_cast<int>(blockDim.y);
    for (int row = static_cast<int>(threadIdx.y); row < rows; row += in_flight * step) {
      packed own[in_flight], partners[in_flight];
      std::int64_t to[in_flight];
#pragma unroll
      for (int i = 0; i < in_flight; ++i) {
        to[i] = -1;
        if (row + i * step >= rows) continue;
        auto const* const from = part.from + (first + row + i * step) * part.from_row;
        own[i] = __ldg(reinterpret_cast<packed const*>(from));
        if (!turn_part::partners_within && turn.turns)
          partners[i] = __ldg(reinterpret_cast<packed const*>(from + turn.partners));
        to[i] = place.offset(row + i * step, part.strides);
      }
#pragma unroll
      for (int i = 0; i < in_flight; ++i) {
        if (to[i] < 0) continue;
        auto const out = turn.turns ? turn.template turned<Stored>(own[i], partners[i]) : own[i];
        *reinterpret_cast<packed*>(part.to + to[i]) = out;
      }
    }
  }
}

template <class Stored, bool Interleaved>
__global__ void __launch_bounds__(rebase_keys_grid::threads, 3)
    rebase_keys_kernel(rebase_keys_plan plan, rebase_span const* spans, rebase_keys_grid grid) {
  auto const blocks = static_cast<unsigned>(grid.blocks_per_span);
  rebase_span const span = spans[blockIdx.x / blocks];
  bool const aligned = grid.vectors && is_aligned<16>(span.keys) && is_aligned<16>(span.values) &&
                       is_aligned<16>(span.keys_out) && is_aligned<16>(span.values_out);
  for (auto first = blockIdx.x % blocks * grid.rows; first < span.rows; first += blocks * grid.rows) {
    auto const rows = static_cast<int>(min(grid.rows, span.rows - first));
    if (aligned) {
      place_rows<Stored, Interleaved, 16 / sizeof(typename Stored::element)>(plan, span, first, rows);
    } else {
      place_rows<Stored, Interleaved, 1>(plan, span, first, rows);
    }
  }
}

template <class Stored>
cudaError_t launch(rebase_keys_plan const& plan, rebase_span const* spans, cudaStream_t stream) noexcept {
  auto const grid = grid_of(plan);
  bool const interleaved = plan.shape.pairing == rotary_pairing::interleaved;
  void (*const kernel)(rebase_keys_plan, rebase_span const*, rebase_keys_grid) =
      interleaved ? &rebase_keys_kernel<Stored, true> : &rebase_keys_kernel<Stored, false>;
  dim3 const block(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  kernel<<<static_cast<unsigned>(plan.spans * grid.blocks_per_span), block, 0, stream>>>(plan, spans, grid);
  return cudaGetLastError();
}

}  // namespace

status launch_rebase_keys(rebase_keys_plan const& plan, rebase_span const* spans, device_exec const& ex) noexcept {
  auto const stream = ex.stream.handle();
  switch (plan.type) {
    case dtype::f32: return outcome_of(launch<stored_f32>(plan, spans, stream));
    case dtype::f16: return outcome_of(launch<stored_f16>(plan, spans, stream));
    case dtype::bf16: break;
  }
  return outcome_of(launch<stored_bf16>(plan, spans, stream));
}

}  // namespace hypic::inline v0
