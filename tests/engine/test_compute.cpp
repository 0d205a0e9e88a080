// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <thread>

#include "engine/compute.hpp"
#include "engine/engine_test.hpp"
#include "engine/workers.hpp"

namespace {

using hypic_engine::buffer;
using hypic_engine::cut_blocks;
using hypic_engine::matrix;
using hypic_engine::row_block;

void fill(std::span<float> values, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (auto& value : values) value = static_cast<float>(static_cast<double>(random() >> 11U) * 0x1p-52 - 1.0);
}

matrix random_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  matrix made{rows, cols, std::vector<float>(static_cast<std::size_t>(rows * cols))};
  fill(made.data, seed);
  return made;
}

buffer random_rows(std::int64_t rows, std::int64_t width, std::uint64_t seed) {
  buffer made(rows, width);
  fill({made.view().data, static_cast<std::size_t>(rows * width)}, seed);
  return made;
}

TEST_CASE("blocks are cut by a fixed length from the beginning of each run") {
  std::vector<row_block> const runs = {{0, 0}, {0, 300}, {300, 1}, {301, 128}, {429, 129}};
  auto const blocks = cut_blocks(runs);
  std::vector<std::pair<std::int64_t, std::int64_t>> found;
  for (auto const& block : blocks) found.emplace_back(block.first, block.rows);
  CHECK(found == std::vector<std::pair<std::int64_t, std::int64_t>>{
                     {0, 128}, {128, 128}, {256, 44}, {300, 1}, {301, 128}, {429, 128}, {557, 1}});
}

TEST_CASE("a block's product has the same bits wherever it lies and whatever runs beside it") {
  hypic_engine::use_one_blas_thread();
  for (auto const& shape : {std::pair{192, 192}, {512, 192}, {192, 512}, {3, 192}, {16, 32}, {5, 7}}) {
    std::int64_t const outputs = shape.first;
    std::int64_t const inputs = shape.second;
    auto const weights = random_matrix(outputs, inputs, 1);
    for (std::int64_t const rows : {1, 2, 8, 33, 128}) {
      CAPTURE(outputs, inputs, rows);
      auto const in = random_rows(rows, inputs, 2);
      buffer alone(rows, outputs);
      multiply(in.view(), weights, alone.view());

      // The same rows among others, in a wider buffer that begins at another alignment.
      constexpr std::int64_t copies = 7;
      buffer many(copies * rows, inputs + 3);
      buffer outs(copies * rows, outputs + 5);
      for (std::int64_t row = 0; row < copies * rows; ++row)
        std::copy_n(&in.view()(row % rows, 0), inputs, &many.view()(row, 1));
      hypic_engine::for_each_task(3, copies, [&](std::int64_t i) {
        multiply(many.columns(1, inputs).rows(i * rows, rows), weights, outs.columns(2, outputs).rows(i * rows, rows));
      });
      bool same = true;
      for (std::int64_t row = 0; row < copies * rows; ++row)
        same =
            same && std::ranges::equal(std::span(&outs.columns(2, outputs)(row, 0), static_cast<std::size_t>(outputs)),
                                       std::span(&alone.view()(row % rows, 0), static_cast<std::size_t>(outputs)));
      CHECK(same);
    }
  }
}

TEST_CASE("a product has the same bits on a thread that the host started") {
  hypic_engine::use_one_blas_thread();
  auto const weights = random_matrix(512, 192, 3);
  auto const in = random_rows(128, 192, 4);
  buffer here(128, 512);
  multiply(in.view(), weights, here.view());
  buffer there(128, 512);
  std::thread([&] {
    hypic_engine::for_each_task(1, 1, [&](std::int64_t) { multiply(in.view(), weights, there.view()); });
  }).join();
  CHECK(here.data() == there.data());
}

TEST_CASE("buffers without rows can be looked at and multiplied") {
  buffer none(0, 8);
  auto const weights = random_matrix(4, 3, 5);
  buffer out(0, 4);
  multiply(none.columns(2, 3), weights, out.view());
  CHECK(none.columns(2, 3).extent[0] == 0);
  CHECK(cut_blocks(std::vector<row_block>{}).empty());
}

TEST_CASE("the first exception of a task is thrown again") {
  for (int const threads : {1, 3}) {
    std::vector<int> ran(20);
    auto const run = [&] {
      hypic_engine::for_each_task(threads, 20, [&](std::int64_t i) {
        ran[static_cast<std::size_t>(i)] = 1;
        if (i == 5) hypic_engine::fail("task ", i);
      });
    };
    CHECK(engine_test::refusal(run) == "task 5");
    CHECK(std::count(ran.begin(), ran.end(), 1) == 20);
  }
}

}  // namespace
