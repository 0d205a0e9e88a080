// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/assembly.hpp"
#include "engine/model.hpp"
#include "engine/records.hpp"

namespace hypic_engine {

struct engine_options {
  std::int32_t seam_rows = 8;
  int threads = 1;
  std::string tenant{};
  hypic::reuse_costs costs{};
  progress tell{};                   ///< of cold segments
  hypic::observer* watch = nullptr;  ///< hears of requests, their layers' calls and cold segments, from any thread
};

/// What serving one request gave.
struct served_request {
  hypic::request_plan plan;
  /// Logits of the last span's forwarded rows, [rows, vocab]; no rows where nothing of it was forwarded.
  buffer logits;
};

/// Serves prompts of cached and fresh spans from a model and a store. Holds no request's state: that lives in the
/// memory and the slots that a caller names.
class engine {
 public:
  engine(model const& with, hypic::cache_store& store, engine_options options);

  model const& served_model() const noexcept { return model_; }
  engine_options const& options() const noexcept { return options_; }
  store_failures const& failures() const noexcept { return failures_; }

  /// A span that is cached under the model's fingerprint and the tenant, and one that is not.
  hypic::prompt_span cached(std::vector<std::int32_t> tokens) const;
  hypic::prompt_span fresh(std::vector<std::int32_t> tokens) const;

  /// Errors: engine_error (an empty prompt, one longer than the context with the tokens to generate).
  hypic::request_plan plan(std::span<hypic::prompt_span const> spans, std::int64_t generated_tokens = 0) const;

  /// The records that a batch reuses: leased, or computed and published.
  /// `prompts` holds each request's spans, in the batch's order.
  std::unique_ptr<fetched_records> fetch(hypic::batch_plan const& batch,
                                         std::span<std::vector<hypic::prompt_span> const> prompts);

  /// The second pass of a batch over given records. Request r keeps its keys in slot `slots[r]` of `memory`; states and
  /// tails go where the batch's own slots say.
  std::vector<served_request> assemble(hypic::batch_plan const& batch, std::span<hypic::record_view const> records,
                                       request_memory& memory, std::vector<std::int64_t> slots) const;

  /// Goes on from slot 0 of `memory`, which holds `position` tokens: forwards `tokens` and gives the last one's logits.
  std::vector<float> extend(request_memory& memory, std::int64_t position, std::vector<std::int32_t> tokens) const;

  /// Greedy decoding from slot 0: `tokens` tokens that follow `position` tokens, the first chosen by `logits`.
  std::vector<std::int32_t> generate(request_memory& memory, std::int64_t position, std::vector<float> logits,
                                     std::int64_t tokens, progress const& tell = {}) const;

 private:
  model const& model_;
  hypic::cache_store& store_;
  engine_options options_;
  store_failures failures_;
};

/// The index of the largest logit, the first where several are equal.
std::int32_t greedy(std::span<float const> logits);

/// A batch in which request r uses slot r, nothing preceding it.
hypic::batch_plan batch_of(std::vector<hypic::request_plan> plans);

}  // namespace hypic_engine
