// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Hopper's asynchronous copies and matrix products, one function an instruction. Source: PTX ISA 8.x, the chapters on
/// mbarrier, cp.async.bulk and wgmma.
namespace hypic::inline v0::hopper {

__device__ inline std::uint32_t shared_address(void const* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// A barrier in shared memory that counts arrivals and bytes.
struct barrier {
  std::uint64_t word;

  __device__ void init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&word)), "r"(arrivals) : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&word)) : "memory");
  }
  /// Arrives once `read` is there, a value that is not negative and depends on all that this thread read of what it
  /// gives back: an arrival may overtake reads whose results nobody has used yet, and the copy engine the reads.
  __device__ void arrive_after(float read) {
    asm volatile(
        "{\n"
        ".reg .pred always;\n"
        "setp.ne.b32 always, %1, -1;\n"
        "@always mbarrier.arrive.shared::cta.b64 _, [%0];\n"
        "}\n" ::"r"(shared_address(&word)),
        "r"(__float_as_uint(read))
        : "memory");
  }
  __device__ void arrive_expecting(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&word)), "r"(bytes)
                 : "memory");
  }
  /// Waits for the end of the phase of that parity.
  __device__ void wait(unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(shared_address(&word)),
        "r"(parity)
        : "memory");
  }
};

/// Makes initialised barriers known to the copy engine.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Makes what this thread stored in shared memory visible to the copy engine and the tensor cores.
__device__ inline void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Copies `bytes`, a multiple of 16, between addresses that are multiples of 16; completes on `done`.
__device__ inline void copy_bulk(void* to, void const* from, unsigned bytes, barrier& done) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(&done.word))
               : "memory");
}

template <int Registers>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

/// A tile of 16-bit elements for wgmma: rows of 128 bytes, contiguous along the product's inner dimension, in groups of
/// 8 rows whose 16-byte pieces are exchanged (128-byte swizzle). The tile is aligned to 1024 bytes.
struct swizzled_tile {
  static constexpr int row_bytes = 128;

  /// Where the 16-byte piece `piece` of row `row` lies.
  __device__ static int offset(int row, int piece) { return row * row_bytes + ((piece ^ (row & 7)) << 4); }

  __device__ static std::uint64_t descriptor(void const* tile) {
    constexpr std::uint64_t swizzle_128 = std::uint64_t{1} << 62;
    constexpr std::uint64_t group_stride = std::uint64_t{8 * row_bytes >> 4} << 32;
    constexpr std::uint64_t unused = std::uint64_t{1} << 16;
    return (shared_address(tile) & 0x3ffffu) >> 4 | unused | group_stride | swizzle_128;
  }
  /// What the descriptor moves by for the next 16 elements of the inner dimension.
  static constexpr std::uint64_t next_16 = 32 >> 4;
};

/// Fixes in registers what was computed before and what products have written: the compiler, which does not know when
/// products read and write them, may not move uses of them over this line.
template <int Count>
__device__ void fix(float (&values)[Count]) {
#pragma unroll
  for (float& value : values) asm volatile("" : "+f"(value)::"memory");
}
template <int Count>
__device__ void fix(std::uint32_t (&values)[Count][4]) {
#pragma unroll
  for (auto& four : values) asm volatile("" : "+r"(four[0]), "+r"(four[1]), "+r"(four[2]), "+r"(four[3])::"memory");
}

/// Begins products that read `left` and write `sums`.
template <int Count, int... Left>
__device__ void products_begin(float (&sums)[Count], std::uint32_t (&... left)[Left][4]) {
  fix(sums);
  (fix(left), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `Pending` of this warpgroup's groups of products are under way.
template <int Pending>
__device__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// sums (64 x 128) = left (64 x 16, fp16, in registers) times right^T (128 x 16 of a tile), added to what is there where
/// `add`.
__device__ inline void product_64_128_16(float (&d)[64], std::uint32_t const (&left)[4], std::uint64_t right,
                                         bool add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(static_cast<int>(add)));
}

}  // namespace hypic::inline v0::hopper
