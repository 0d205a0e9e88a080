// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/model.hpp"
#include "hypic/request/assembler.hpp"
#include "hypic/store/cache_store.hpp"

namespace hypic_engine {

/// Told that `done` of `all` steps of some long work are over. May be called from several threads, one at a time.
using progress = std::function<void(std::int64_t done, std::int64_t all)>;

/// One segment, computed alone.
struct segment_record {
  hypic::record_layout layout;
  std::vector<std::int32_t> tokens;
  std::vector<std::byte> block;
  std::vector<hypic::digest> digests;

  hypic::record_view view() const noexcept { return {&layout, block.data()}; }
};

/// A record of `tokens` whose block is still empty.
segment_record blank_record(model const& with, std::vector<std::int32_t> tokens);

/// An attention layer of rows that see each other alone, the first at position 0. Shapes: as of token_mixer::attention.
void attend_alone(hypic::attention_layer const& layer, hypic::tensor_view<float const, 3> q,
                  hypic::tensor_view<float const, 3> k, hypic::tensor_view<float const, 3> v,
                  hypic::tensor_view<float, 3> o, hypic::observer* watch = nullptr);

/// The mixer of the first pass: runs one segment alone and writes its record's block.
class canonical_mixer final : public token_mixer {
 public:
  /// `record` is a blank one of a model with that layout. All outlive the mixer.
  canonical_mixer(hypic::model_layout const& layout, segment_record& record, hypic::observer* watch = nullptr);

  void tails(std::int32_t layer, hypic::tensor_view<float const, 2> raw, hypic::tensor_view<float, 3> tails) override;
  void linear(std::int32_t layer, hypic::query_rows_view const& in, hypic::tensor_view<float, 3> o) override;
  void attention(std::int32_t layer, hypic::tensor_view<float const, 3> q, hypic::tensor_view<float const, 3> k,
                 hypic::tensor_view<float const, 3> v, hypic::tensor_view<float, 3> o) override;

 private:
  std::int64_t rows() const noexcept { return record_.layout.tokens(); }

  hypic::model_layout const& layout_;
  segment_record& record_;
  hypic::observer* watch_;
};

/// Runs a record's tokens alone through `mixer`: its canonical_mixer, or one around that.
void run_alone(model const& with, segment_record const& record, token_mixer& mixer, hypic::observer* watch = nullptr);

/// The first pass: computes segments alone, in parallel, longest first. A record's bits depend on its tokens alone.
/// Errors: engine_error (a token outside of the vocabulary, values that may not be cached).
std::vector<segment_record> compute_records(model const& with, std::span<std::vector<std::int32_t> const> segments,
                                            int threads, progress const& tell = {}, hypic::observer* watch = nullptr);

/// What a look-up said of one record.
struct fetch_report {
  hypic::record_key key{};
  bool hit = false;
  hypic::miss_reason reason = hypic::miss_reason::none;
};

/// Failures of a store that a request outlived.
struct store_failures {
  std::int64_t begin = 0;
  std::int64_t poll = 0;
  std::int64_t publish = 0;
  std::int64_t release = 0;
};

/// A segment that is asked for by name.
struct named_segment {
  hypic::record_key key{};
  std::vector<std::int32_t> tokens;
};

/// Records of some segments: leased from a store where it has them, computed and published where it has not. A record
/// that was computed serves as it was published. Leases end with the object.
class fetched_records {
 public:
  /// Errors: those of compute_records. A failing store is none: its records are computed.
  fetched_records(model const& with, hypic::cache_store& store, std::vector<named_segment> segments, int threads,
                  store_failures& failures, progress const& tell = {}, hypic::observer* watch = nullptr);
  ~fetched_records();
  fetched_records(fetched_records const&) = delete;
  fetched_records& operator=(fetched_records const&) = delete;

  /// One a segment, in their order.
  std::vector<hypic::record_view> const& views() const noexcept { return views_; }
  std::vector<fetch_report> const& reports() const noexcept { return reports_; }

 private:
  void look_up();
  void compute_missing(int threads, progress const& tell, hypic::observer* watch);
  void publish();

  model const& model_;
  hypic::cache_store& store_;
  store_failures& failures_;
  hypic::ticket lease_ = hypic::ticket::none;
  std::vector<named_segment> segments_;
  std::vector<hypic::record_layout> layouts_;
  std::vector<segment_record> computed_;
  std::vector<std::size_t> missing_;  // the segments that computed_ holds
  std::vector<hypic::record_view> views_;
  std::vector<fetch_report> reports_;
};

}  // namespace hypic_engine
