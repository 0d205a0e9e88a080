// SPDX-License-Identifier: Apache-2.0
#include "core/matrix.hpp"

#include <cstddef>
#include <cstring>

#include "core/decay.hpp"
#include "hypic/core/instruction_set.hpp"

// Each kernel is written once, as a template over the vector width, and compiled for several instruction sets in
// functions that carry the target; the widest that the processor has is picked at run time. No set is allowed to fuse
// a product with a sum (-ffp-contract=off) unless fp64 holds the product, which keeps their bits the same. The bodies are forced inline: a vector
// wider than the baseline's may not cross a call.
#define HYPIC_INLINE [[gnu::always_inline]] inline

namespace hypic::inline v0 {
namespace {

template <class T, std::int64_t Bytes>
struct vector_of {
  using type [[gnu::vector_size(Bytes)]] = T;
};

/// An instruction set: bytes of a vector, and the tile of a product that fits its registers.
template <std::int64_t Bytes, std::int64_t Rows, std::int64_t Vectors>
struct instruction_set {
  static constexpr std::int64_t bytes = Bytes;
  static constexpr std::int64_t tile_rows = Rows;
  static constexpr std::int64_t tile_vectors = Vectors;
};
using baseline = instruction_set<16, 4, 2>;
using avx2 = instruction_set<32, 4, 2>;
using avx512 = instruction_set<64, 8, 3>;

template <class V, class T>
HYPIC_INLINE void load(V& value, T const* from) noexcept {
  __builtin_memcpy(&value, from, sizeof(V));
}

template <class V, class T>
HYPIC_INLINE void store(T* to, V const& value) noexcept {
  __builtin_memcpy(to, &value, sizeof(V));
}

/// As many floats as V has doubles.
template <class V>
using floats_of = typename vector_of<float, static_cast<std::int64_t>(sizeof(V) / 2)>::type;

/// to = from.
template <class V>
HYPIC_INLINE void widen(V& to, float const* from) noexcept {
  if constexpr (sizeof(V) == sizeof(double)) {
    to = static_cast<double>(*from);
  } else {
    floats_of<V> floats;
    load(floats, from);
#if defined(__x86_64__) && !defined(__clang__)
    // g++ splits the conversion for the baseline before it inlines this into a function of a wider set.
    if constexpr (sizeof(V) > baseline::bytes) {
      asm("vcvtps2pd %1, %0" : "=v"(to) : "vm"(floats));
      return;
    }
#endif
    to = __builtin_convertvector(floats, V);
  }
}

template <class V>
HYPIC_INLINE void narrow(float* to, V const& from) noexcept {
  if constexpr (sizeof(V) == sizeof(double)) {
    *to = static_cast<float>(from);
  } else {
    store(to, __builtin_convertvector(from, floats_of<V>));
  }
}

template <class V, std::int64_t Count>
using registers = V[static_cast<std::size_t>(Count)];

/// sum += factor * operand, for a product that fp64 holds exactly: fused or not, the bits are the same.
template <class V>
HYPIC_INLINE void add_exact_product(V& sum, double factor, V const& operand) noexcept {
#if defined(__clang__)
#pragma clang fp contract(fast)
#elif defined(__x86_64__)
  if constexpr (sizeof(V) > baseline::bytes) {
    V const factors = factor - V{};
    asm("vfmadd231pd %2, %1, %0" : "+v"(sum) : "v"(factors), "v"(operand));
    return;
  }
#endif
  sum = sum + factor * operand;
}

/// All rows of `Vectors` vectors of columns.
template <class V, std::int64_t Rows, std::int64_t Vectors, class Tiles>
HYPIC_INLINE void cover_rows(std::int64_t rows, std::int64_t column, Tiles const& tiles) noexcept {
  std::int64_t r = 0;
  for (; r + Rows <= rows; r += Rows) tiles.template make<V, Rows, Vectors>(r, column);
  for (; r < rows; ++r) tiles.template make<V, 1, Vectors>(r, column);
}

/// Makes rows x columns by tiles that hold Rows x Vectors vectors of T in registers.
template <class Isa, class T, class Tiles>
HYPIC_INLINE void cover(std::int64_t rows, std::int64_t columns, Tiles const& tiles) noexcept {
  using vector = typename vector_of<T, Isa::bytes>::type;
  constexpr std::int64_t lanes = Isa::bytes / sizeof(T);
  constexpr std::int64_t wide = lanes * Isa::tile_vectors;
  std::int64_t c = 0;
  for (; c + wide <= columns; c += wide) cover_rows<vector, Isa::tile_rows, Isa::tile_vectors>(rows, c, tiles);
  for (; c + lanes <= columns; c += lanes) cover_rows<vector, Isa::tile_rows, 1>(rows, c, tiles);
  for (; c < columns; ++c) cover_rows<T, Isa::tile_rows, 1>(rows, c, tiles);
}

struct product_kernel {
  /// Terms that are summed before the sum is added to the others: a single running sum of 128 terms would be four times
  /// less accurate.
  static constexpr std::int64_t sum_block = 16;

  /// A part of the inner sum of one tile.
  template <class V, std::int64_t Rows, std::int64_t Vectors>
  HYPIC_INLINE static void block(std::int64_t inner, left_operand left, matrix_view<float const> right,
                                 matrix_view<float> out, store_mode mode) noexcept {
    constexpr std::int64_t lanes = sizeof(V) / sizeof(float);
    registers<registers<V, Vectors>, Rows> sum = {};
    for (std::int64_t i = 0; i < inner; ++i) {
      registers<V, Vectors> operand;
      for (std::int64_t v = 0; v < Vectors; ++v) load(operand[v], right.row(i) + v * lanes);
      for (std::int64_t r = 0; r < Rows; ++r) {
        float const factor = left.data[r * left.row_stride + i * left.inner_stride];
        for (std::int64_t v = 0; v < Vectors; ++v) sum[r][v] = sum[r][v] + factor * operand[v];
      }
    }
    for (std::int64_t r = 0; r < Rows; ++r) {
      for (std::int64_t v = 0; v < Vectors; ++v) {
        float* const to = out.row(r) + v * lanes;
        V before = {};
        if (mode == store_mode::add) load(before, to);
        store(to, mode == store_mode::add ? before + sum[r][v] : sum[r][v]);
      }
    }
  }

  struct tiles {
    std::int64_t inner;
    left_operand left;
    matrix_view<float const> right;
    matrix_view<float> out;
    store_mode mode;

    template <class V, std::int64_t Rows, std::int64_t Vectors>
    HYPIC_INLINE void make(std::int64_t r, std::int64_t c) const noexcept {
      auto block_mode = mode;
      std::int64_t first = 0;
      do {
        auto const terms = inner - first < sum_block ? inner - first : sum_block;
        block<V, Rows, Vectors>(terms, left.below(r).from(first), right.at(first, c), out.at(r, c), block_mode);
        block_mode = store_mode::add;
        first += terms;
      } while (first < inner);
    }
  };

  template <class Isa>
  HYPIC_INLINE static void run(std::int64_t rows, std::int64_t columns, std::int64_t inner, left_operand left,
                               matrix_view<float const> right, matrix_view<float> out, store_mode mode) noexcept {
    cover<Isa, float>(rows, columns, tiles{inner, left, right, out, mode});
  }
};

struct exact_product_kernel {
  struct tiles {
    std::int64_t inner;
    matrix_view<double const> left;
    matrix_view<float const> right;
    matrix_view<double> out;

    template <class V, std::int64_t Rows, std::int64_t Vectors>
    HYPIC_INLINE void make(std::int64_t first, std::int64_t column) const noexcept {
      constexpr std::int64_t lanes = sizeof(V) / sizeof(double);
      registers<registers<V, Vectors>, Rows> sum = {};
      for (std::int64_t i = 0; i < inner; ++i) {
        registers<V, Vectors> operand;
        for (std::int64_t v = 0; v < Vectors; ++v) widen(operand[v], right.row(i) + column + v * lanes);
        for (std::int64_t r = 0; r < Rows; ++r) {
          double const factor = left.row(first + r)[i];
          for (std::int64_t v = 0; v < Vectors; ++v) add_exact_product(sum[r][v], factor, operand[v]);
        }
      }
      for (std::int64_t r = 0; r < Rows; ++r) {
        for (std::int64_t v = 0; v < Vectors; ++v) store(out.row(first + r) + column + v * lanes, sum[r][v]);
      }
    }
  };

  template <class Isa>
  HYPIC_INLINE static void run(std::int64_t rows, std::int64_t columns, std::int64_t inner,
                               matrix_view<double const> left, matrix_view<float const> right,
                               matrix_view<double> out) noexcept {
    cover<Isa, double>(rows, columns, tiles{inner, left, right, out});
  }
};

/// Dot products in eight running sums, whatever the vector width, folded in one order.
struct row_dots_kernel {
  static constexpr std::int64_t sums = 8;

  template <class Isa, std::int64_t Rows>
  HYPIC_INLINE static void rows_at(std::int64_t dim, double const* x, matrix_view<double const> rows,
                                   double* out) noexcept {
    using vector = typename vector_of<double, Isa::bytes>::type;
    constexpr std::int64_t lanes = Isa::bytes / sizeof(double);
    constexpr std::int64_t vectors = sums / lanes;
    registers<registers<vector, vectors>, Rows> sum = {};
    std::int64_t d = 0;
    for (; d + sums <= dim; d += sums) {
      for (std::int64_t v = 0; v < vectors; ++v) {
        vector one;
        load(one, x + d + v * lanes);
        for (std::int64_t r = 0; r < Rows; ++r) {
          vector other;
          load(other, rows.row(r) + d + v * lanes);
          sum[r][v] = sum[r][v] + one * other;
        }
      }
    }
    for (std::int64_t r = 0; r < Rows; ++r) {
      double part[sums];
      __builtin_memcpy(part, sum[r], sizeof(part));
      for (std::int64_t rest = d; rest < dim; ++rest) part[rest - d] += x[rest] * rows.row(r)[rest];
      out[r] = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    }
  }

  template <class Isa>
  HYPIC_INLINE static void run(std::int64_t count, std::int64_t dim, double const* x, matrix_view<double const> rows,
                               double* out) noexcept {
    constexpr std::int64_t together = Isa::bytes == 16 ? 1 : 4;
    std::int64_t r = 0;
    for (; r + together <= count; r += together) rows_at<Isa, together>(dim, x, rows.at(r, 0), out + r);
    for (; r < count; ++r) rows_at<Isa, 1>(dim, x, rows.at(r, 0), out + r);
  }
};

struct decayed_row_kernel {
  template <class Isa, class T>
  HYPIC_INLINE static void run(std::int64_t dim, double const* to, double const* from, double const* x,
                               T* out) noexcept {
    for (std::int64_t d = 0; d < dim; ++d) out[d] = static_cast<T>(decay_of(to[d] - from[d]) * x[d]);
  }
};

struct solve_kernel {
  /// Columns of one tile, all rows of which stay in the first-level cache.
  template <class V, std::int64_t Vectors>
  HYPIC_INLINE static void columns_at(std::int64_t rows, matrix_view<double const> lower, double const* beta,
                                      matrix_view<float const> v, matrix_view<double> u) noexcept {
    constexpr std::int64_t lanes = sizeof(V) / sizeof(double);
    registers<registers<V, Vectors>, solve_rows> solved;
    for (std::int64_t i = 0; i < rows; ++i) {
      registers<V, Vectors> sum;
      for (std::int64_t k = 0; k < Vectors; ++k) {
        V x, value = {};
        load(x, u.row(i) + k * lanes);
        if (v.data != nullptr) widen(value, v.row(i) + k * lanes);
        sum[k] = beta[i] * (value - x);
      }
      for (std::int64_t j = 0; j < i; ++j) {
        double const factor = lower.row(i)[j];
        for (std::int64_t k = 0; k < Vectors; ++k) sum[k] = sum[k] - factor * solved[j][k];
      }
      for (std::int64_t k = 0; k < Vectors; ++k) {
        solved[i][k] = sum[k];
        store(u.row(i) + k * lanes, sum[k]);
      }
    }
  }

  template <class Isa>
  HYPIC_INLINE static void run(std::int64_t rows, std::int64_t columns, matrix_view<double const> lower,
                               double const* beta, matrix_view<float const> v, matrix_view<double> u) noexcept {
    using vector = typename vector_of<double, Isa::bytes>::type;
    constexpr std::int64_t lanes = Isa::bytes / sizeof(double);
    constexpr std::int64_t vectors = 4;
    std::int64_t c = 0;
    auto const v_at = [&] { return v.data == nullptr ? v : v.at(0, c); };
    for (; c + lanes * vectors <= columns; c += lanes * vectors) {
      columns_at<vector, vectors>(rows, lower, beta, v_at(), u.at(0, c));
    }
    for (; c + lanes <= columns; c += lanes) columns_at<vector, 1>(rows, lower, beta, v_at(), u.at(0, c));
    for (; c < columns; ++c) columns_at<double, 1>(rows, lower, beta, v_at(), u.at(0, c));
  }
};

struct decays_kernel {
  template <class Isa>
  HYPIC_INLINE static void run(std::int64_t count, float const* logs, double* out) noexcept {
    // Widened beforehand: g++ makes the bound of a widened value a branch, which keeps the loop from vectorising.
    for (std::int64_t d = 0; d < count; ++d) out[d] = static_cast<double>(logs[d]);
    for (std::int64_t d = 0; d < count; ++d) out[d] = decay_of(out[d]);
  }
};

struct decayed_sum_kernel {
  template <class V, std::int64_t Links>
  HYPIC_INLINE static void columns_at(std::int64_t c, decay_chain const& chain, float const* in, float* out) noexcept {
    float rounded[sizeof(V) / sizeof(double)];
    V sum, more;
    widen(sum, in + c);
    for (std::int64_t link = 0; link < Links; ++link) {
      if (link > 0) widen(sum, rounded);
      widen(more, chain.added[link] + c);
      narrow(rounded, chain.decay[link] * sum + more);
    }
    std::memcpy(out + c, rounded, sizeof rounded);
  }

  template <class V, std::int64_t Links>
  HYPIC_INLINE static void rows(std::int64_t columns, decay_chain const& chain, float const* in, float* out) noexcept {
    constexpr std::int64_t lanes = sizeof(V) / sizeof(double);
    auto const kept = chain;
    std::int64_t c = 0;
    for (; c + lanes <= columns; c += lanes) columns_at<V, Links>(c, kept, in, out);
    for (; c < columns; ++c) columns_at<double, Links>(c, kept, in, out);
  }

  template <class Isa>
  HYPIC_INLINE static void run(std::int64_t columns, decay_chain const* chain, float const* in, float* out) noexcept {
    using vector = typename vector_of<double, Isa::bytes>::type;
    switch (chain->links) {
      case 1: return rows<vector, 1>(columns, *chain, in, out);
      case 2: return rows<vector, 2>(columns, *chain, in, out);
      case 3: return rows<vector, 3>(columns, *chain, in, out);
      default: return rows<vector, 4>(columns, *chain, in, out);
    }
  }
};

struct advance_kernel {
  struct tiles {
    std::int64_t inner;
    matrix_view<double const> keys;
    matrix_view<double const> updates;
    double const* decay;
    std::int64_t decay_stride;
    state_columns state;

    template <class V, std::int64_t Rows, std::int64_t Vectors>
    HYPIC_INLINE void make(std::int64_t first, std::int64_t column) const noexcept {
      constexpr std::int64_t lanes = sizeof(V) / sizeof(double);
      registers<registers<V, Vectors>, Rows> sum = {};
      for (std::int64_t i = 0; i < inner; ++i) {
        registers<V, Vectors> update;
        for (std::int64_t v = 0; v < Vectors; ++v) load(update[v], updates.row(i) + column + v * lanes);
        for (std::int64_t r = 0; r < Rows; ++r) {
          double const key = keys.row(i)[first + r];
          for (std::int64_t v = 0; v < Vectors; ++v) sum[r][v] = sum[r][v] + key * update[v];
        }
      }
      for (std::int64_t r = 0; r < Rows; ++r) {
        double const factor = decay[(first + r) * decay_stride];
        for (std::int64_t v = 0; v < Vectors; ++v) add(factor, sum[r][v], state.at(first + r, column + v * lanes));
      }
    }

    /// To one vector of each copy.
    template <class V>
    HYPIC_INLINE void add(double factor, V const& sum, state_columns to) const noexcept {
      for (std::int64_t copy = 0; copy < to.copies; ++copy) {
        V kept;
        load(kept, to.exact.data + copy * to.copy_offset);
        kept = factor * kept + sum;
        store(to.exact.data + copy * to.copy_offset, kept);
        narrow(to.rounded.data + copy * to.copy_offset, kept);
      }
    }
  };

  template <class Isa>
  HYPIC_INLINE static void run(std::int64_t rows, std::int64_t columns, std::int64_t inner,
                               matrix_view<double const> keys, matrix_view<double const> updates, double const* decay,
                               std::int64_t decay_stride, state_columns state) noexcept {
    cover<Isa, double>(rows, columns, tiles{inner, keys, updates, decay, decay_stride, state});
  }
};

template <class Kernel, class... Arguments>
void on_baseline(Arguments... arguments) noexcept {
  Kernel::template run<baseline>(arguments...);
}
#if defined(__x86_64__)
template <class Kernel, class... Arguments>
[[gnu::target("avx2,fma")]] void on_avx2(Arguments... arguments) noexcept {
  Kernel::template run<avx2>(arguments...);
}
template <class Kernel, class... Arguments>
[[gnu::target("avx512f,avx512dq,avx512vl")]] void on_avx512(Arguments... arguments) noexcept {
  Kernel::template run<avx512>(arguments...);
}
#endif

enum class vector_level : std::uint8_t { bytes_16, bytes_32, bytes_64 };

/// The widest vectors of this processor.
vector_level widest_level() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return vector_level::bytes_64;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return vector_level::bytes_32;
#endif
  return vector_level::bytes_16;
}

/// The function that runs `Kernel` with the vectors of a level, which the processor has.
template <class Kernel, class... Arguments>
auto function_for([[maybe_unused]] vector_level level) noexcept -> void (*)(Arguments...) noexcept {
#if defined(__x86_64__)
  if (level == vector_level::bytes_64) return on_avx512<Kernel, Arguments...>;
  if (level == vector_level::bytes_32) return on_avx2<Kernel, Arguments...>;
#endif
  return on_baseline<Kernel, Arguments...>;
}

template <class Kernel, class... Arguments>
void dispatch(Arguments... arguments) noexcept {
  static auto const kernel = function_for<Kernel, Arguments...>(widest_level());
  kernel(arguments...);
}

}  // namespace

char const* host_instruction_set() noexcept {
  switch (widest_level()) {
    case vector_level::bytes_64: return "avx512";
    case vector_level::bytes_32: return "avx2";
    case vector_level::bytes_16: break;
  }
  return "baseline";
}

void product(std::int64_t rows, std::int64_t columns, std::int64_t inner, left_operand left,
             matrix_view<float const> right, matrix_view<float> out, store_mode mode) noexcept {
  dispatch<product_kernel>(rows, columns, inner, left, right, out, mode);
}

void exact_product(std::int64_t rows, std::int64_t columns, std::int64_t inner, matrix_view<double const> left,
                   matrix_view<float const> right, matrix_view<double> out) noexcept {
  dispatch<exact_product_kernel>(rows, columns, inner, left, right, out);
}

void row_dots(std::int64_t count, std::int64_t dim, double const* x, matrix_view<double const> rows,
              double* out) noexcept {
  dispatch<row_dots_kernel>(count, dim, x, rows, out);
}

void decayed_row(std::int64_t dim, double const* to, double const* from, double const* x, double* out) noexcept {
  dispatch<decayed_row_kernel>(dim, to, from, x, out);
}

void decayed_row(std::int64_t dim, double const* to, double const* from, double const* x, float* out) noexcept {
  dispatch<decayed_row_kernel>(dim, to, from, x, out);
}

void decays(std::int64_t count, float const* logs, double* out) noexcept { dispatch<decays_kernel>(count, logs, out); }

void decayed_sum(std::int64_t columns, decay_chain const& chain, float const* in, float* out) noexcept {
  dispatch<decayed_sum_kernel>(columns, &chain, in, out);
}

void solve(std::int64_t rows, std::int64_t columns, matrix_view<double const> lower, double const* beta,
           matrix_view<float const> v, matrix_view<double> u) noexcept {
  dispatch<solve_kernel>(rows, columns, lower, beta, v, u);
}

void advance(std::int64_t rows, std::int64_t columns, std::int64_t inner, matrix_view<double const> keys,
             matrix_view<double const> updates, double const* decay, std::int64_t decay_stride,
             state_columns state) noexcept {
  dispatch<advance_kernel>(rows, columns, inner, keys, updates, decay, decay_stride, state);
}

}  // namespace hypic::inline v0
