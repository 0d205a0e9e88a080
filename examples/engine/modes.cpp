// SPDX-License-Identifier: Apache-2.0
#include "engine/modes.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>

#include "engine/prefix_cache.hpp"
#include "engine/status.hpp"
#include "hypic/algebra/summary.hpp"
#include "hypic/store/memory_store.hpp"

namespace hypic_engine {
namespace {

constexpr double undefined = std::numeric_limits<double>::quiet_NaN();

class stopwatch {
 public:
  double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// What a mode leaves: the query's logits and the request's memory.
struct mode_run {
  buffer logits;
  request_memory memory;
  std::int64_t tokens_forwarded = 0;
  double ttft_ms = 0.0;
  double cold_ms = 0.0;
};

std::int64_t tokens_of(document_prompt const& prompt) {
  auto tokens = static_cast<std::int64_t>(prompt.query.size());
  for (auto const& document : prompt.documents) tokens += static_cast<std::int64_t>(document.size());
  return tokens;
}

std::vector<std::vector<std::int32_t>> spans_of(document_prompt const& prompt) {
  auto spans = prompt.documents;
  spans.push_back(prompt.query);
  return spans;
}

mode_run run_full(model const& with, document_prompt const& prompt, int threads) {
  hypic::memory_store nothing(0);
  engine const serving(with, nothing, {.threads = threads});
  stopwatch const watch;
  auto served = prefix_cache(serving, tokens_of(prompt)).serve(spans_of(prompt));
  auto const ms = watch.ms();
  return {std::move(served.logits), std::move(served.memory), served.tokens_forwarded, ms, ms};
}

/// The leading documents that stand where they stood in the unshuffled order.
std::vector<std::vector<std::int32_t>> common_leading(document_prompt const& prompt) {
  std::vector<std::vector<std::int32_t>> common;
  for (std::size_t i = 0; i < prompt.unshuffled.size(); ++i) {
    if (prompt.documents.at(prompt.unshuffled[i]) != prompt.documents.at(i)) break;
    common.push_back(prompt.documents[i]);
  }
  return common;
}

/// Of a cache that saw the unshuffled order, the common leading documents alone are of use: it is filled with them.
/// Where there are none it goes on from nothing, as full recompute did: the result is that one's.
mode_run run_prefix(model const& with, document_prompt const& prompt, mode_run const& full, int threads) {
  auto const common = common_leading(prompt);
  if (common.empty()) return full;
  hypic::memory_store nothing(0);
  engine const serving(with, nothing, {.threads = threads});
  prefix_cache cache(serving, tokens_of(prompt));
  cache.fill(common);
  stopwatch const watch;
  auto served = cache.serve(spans_of(prompt));
  return {std::move(served.logits), std::move(served.memory), served.tokens_forwarded, watch.ms(), full.cold_ms};
}

/// Copies of records whose operators are the identity: composing them adds end states up.
class added_records {
 public:
  added_records(model const& with, std::vector<hypic::record_view> const& records) {
    for (auto const& record : records) {
      blocks_.emplace_back(record.block, record.block + record.layout->bytes());
      views_.push_back({record.layout, blocks_.back().data()});
      for (std::size_t l = 0; l < with.layout().layers.size(); ++l)
        if (auto const* linear = std::get_if<hypic::linear_layer>(&with.layout().layers[l]))
          forget_operator(*linear, record.layout->body(static_cast<std::int32_t>(l), blocks_.back().data()));
    }
  }
  std::vector<hypic::record_view> const& views() const noexcept { return views_; }

 private:
  static void forget_operator(hypic::linear_layer const& layer, hypic::summary_view body) {
    auto const& dims = layer.dims;
    std::vector<float> end_states(static_cast<std::size_t>(dims.value_heads * dims.state_elements()));
    auto const unused = hypic::dense_view(end_states.data(), dims.value_heads, dims.key_dim, dims.value_dim);
    check(hypic::with_family(layer.family,
                             [&]<class F>(F) {
                               return hypic::set_identity<F>(dims, {body.operators, unused}, {});
                             }),
          "an identity operator");
  }

  std::vector<std::vector<std::byte>> blocks_;
  std::vector<hypic::record_view> views_;
};

/// One model's records of a prompt's documents: each is computed once, however many modes read it.
struct document_records {
  hypic::memory_store store{std::int64_t{1} << 40};
  double computed_ms = 0.0;
};

/// How a mode uses records. Where `add` is set, they sum up whole segments and their operators are dropped.
struct record_use {
  std::int32_t seam_rows = 0;
  bool rotate = true;
  bool add = false;
};

/// Serves through cached spans.
mode_run run_cached(model const& with, document_prompt const& prompt, document_records& documents,
                    record_use const& use, int threads, progress const& tell) {
  engine serving(with, documents.store, {.seam_rows = use.seam_rows, .threads = threads, .tell = tell});
  std::vector<std::vector<hypic::prompt_span>> prompts(1);
  for (auto const& document : prompt.documents) prompts[0].push_back(serving.cached(document));
  prompts[0].push_back(serving.fresh(prompt.query));
  auto const planned = [&] {
    auto plan = serving.plan(prompts[0]);
    if (!use.rotate)
      for (auto& span : plan.spans) span.turn = 0;
    return batch_of({std::move(plan)});
  };

  stopwatch const computing;
  auto const missed = [](fetch_report const& report) { return !report.hit; };
  auto const cold_reports = serving.fetch(planned(), prompts)->reports();
  if (std::any_of(cold_reports.begin(), cold_reports.end(), missed)) documents.computed_ms += computing.ms();

  stopwatch const planning;
  auto const batch = planned();
  auto const records = serving.fetch(batch, prompts);
  auto const planned_ms = planning.ms();
  std::optional<added_records> added;
  if (use.add) added.emplace(with, records->views());
  request_memory memory(with.layout(), 1, tokens_of(prompt));
  stopwatch const assembling;
  auto served = serving.assemble(batch, added ? added->views() : records->views(), memory, {0});
  auto const ms = planned_ms + assembling.ms();
  return {std::move(served.front().logits), std::move(memory), batch.rows(), ms, documents.computed_ms + ms};
}

void score_logits(mode_outcome& outcome, buffer const& full, std::span<std::int32_t const> query) {
  auto const rows = full.rows();
  double kl = 0.0;
  double agreed = 0.0;
  double nll_full = 0.0;
  double nll = 0.0;
  for (std::int64_t row = 0; row < rows; ++row) {
    auto const reference = log_softmax(full.view(), row);
    auto const found = log_softmax(std::as_const(outcome.logits).view(), row);
    for (std::size_t v = 0; v < reference.size(); ++v) kl += std::exp(reference[v]) * (reference[v] - found[v]);
    agreed += std::max_element(reference.begin(), reference.end()) - reference.begin() ==
              std::max_element(found.begin(), found.end()) - found.begin();
    if (row + 1 == rows) break;
    auto const next = static_cast<std::size_t>(query[static_cast<std::size_t>(row + 1)]);
    nll_full -= reference[next];
    nll -= found[next];
  }
  auto const mean = [](double sum, std::int64_t count) {
    return count > 0 ? sum / static_cast<double>(count) : undefined;
  };
  outcome.kl = mean(kl, rows);
  outcome.top1 = mean(agreed, rows);
  outcome.nll_full = mean(nll_full, rows - 1);
  outcome.nll = mean(nll, rows - 1);
}

double state_error(model const& with, request_memory& full, request_memory& found) {
  double errors = 0.0;
  std::int64_t layers = 0;
  for (std::size_t l = 0; l < with.layout().layers.size(); ++l) {
    if (!std::holds_alternative<hypic::linear_layer>(with.layout().layers[l])) continue;
    auto const reference = full.states(static_cast<std::int32_t>(l));
    auto const state = found.states(static_cast<std::int32_t>(l));
    double difference = 0.0;
    double norm = 0.0;
    for (std::int64_t i = 0; i < reference.size(); ++i) {
      auto const expected = static_cast<double>(reference.data[i]);
      difference += (state.data[i] - expected) * (state.data[i] - expected);
      norm += expected * expected;
    }
    errors += std::sqrt(difference / norm);
    ++layers;
  }
  return layers > 0 ? errors / static_cast<double>(layers) : undefined;
}

}  // namespace

std::string_view name_of(mode which) noexcept {
  switch (which) {
    case mode::full: return "full";
    case mode::prefix: return "prefix";
    case mode::addition: return "addition";
    case mode::operator_only: return "operator";
    case mode::operator_rotate: return "operator_rotate";
    case mode::operator_rotate_seam: break;
  }
  return "operator_rotate_seam";
}

mode_comparison::mode_comparison(checkpoint const& loaded, std::int32_t seam_rows, int threads, progress tell)
    : model_(loaded, std::max(seam_rows, 8)),
      headless_(loaded, 0),
      seam_rows_(seam_rows),
      threads_(threads),
      tell_(std::move(tell)) {}

std::vector<mode_outcome> mode_comparison::run(document_prompt const& prompt) const {
  document_records documents;
  document_records summed_up;
  auto full = run_full(model_, prompt, threads_);
  auto const run_mode = [&](mode which) {
    switch (which) {
      case mode::full: return full;
      case mode::prefix: return run_prefix(model_, prompt, full, threads_);
      case mode::addition:
        return run_cached(headless_, prompt, summed_up, {.rotate = false, .add = true}, threads_, tell_);
      case mode::operator_only: return run_cached(model_, prompt, documents, {.rotate = false}, threads_, tell_);
      case mode::operator_rotate: return run_cached(model_, prompt, documents, {}, threads_, tell_);
      case mode::operator_rotate_seam: break;
    }
    return run_cached(model_, prompt, documents, {.seam_rows = seam_rows_}, threads_, tell_);
  };
  std::vector<mode_outcome> outcomes;
  for (auto const which : all_modes) {
    auto run = run_mode(which);
    mode_outcome outcome{.which = which,
                         .tokens_forwarded = run.tokens_forwarded,
                         .ttft_ms = run.ttft_ms,
                         .cold_ms = run.cold_ms,
                         .logits = std::move(run.logits)};
    outcome.state_error = state_error(model_, full.memory, run.memory);
    score_logits(outcome, full.logits, prompt.query);
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

}  // namespace hypic_engine
