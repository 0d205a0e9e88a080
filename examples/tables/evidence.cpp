// SPDX-License-Identifier: Apache-2.0
#include "tables/evidence.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "engine/assembly.hpp"
#include "engine/serving.hpp"
#include "engine/status.hpp"
#include "hypic/segment/segment_prefill.hpp"
#include "hypic/store/memory_store.hpp"
#include "tables/composition.hpp"
#include "tables/exactness.hpp"
#include "tables/layer_rows.hpp"
#include "tables/prompts.hpp"
#include "tables/random.hpp"

namespace hypic_tables {
namespace {

using hypic_engine::check;
using hypic_engine::take;

constexpr std::int32_t kept_rows = 16;  // W of the seam's records
constexpr std::array<std::int32_t, 7> seams{0, 1, 2, 3, 4, 8, 16};
constexpr std::int32_t usual_seam = 8;
constexpr std::array<std::int64_t, 8> distances{0, 1, 2, 4, 8, 16, 32, 64};

/// A mixer in front of another that changes what attention gives.
class attention_change : public hypic_engine::token_mixer {
 public:
  explicit attention_change(hypic_engine::token_mixer& inner) : inner_(inner) {}
  void tails(std::int32_t layer, hypic::tensor_view<float const, 2> raw, hypic::tensor_view<float, 3> tails) override {
    inner_.tails(layer, raw, tails);
  }
  void linear(std::int32_t layer, hypic::query_rows_view const& in, hypic::tensor_view<float, 3> o) override {
    inner_.linear(layer, in, o);
  }

 protected:
  hypic_engine::token_mixer& inner_;
};

/// Attention gives zeros; keys and values are kept as ever.
class no_attention final : public attention_change {
 public:
  using attention_change::attention_change;
  void attention(std::int32_t layer, hypic::tensor_view<float const, 3> q, hypic::tensor_view<float const, 3> k,
                 hypic::tensor_view<float const, 3> v, hypic::tensor_view<float, 3> o) override {
    inner_.attention(layer, q, k, v, o);
    std::fill_n(o.data, o.size(), 0.0f);
  }
};

/// Attention sees the rows of this pass alone.
class own_attention final : public attention_change {
 public:
  own_attention(hypic_engine::token_mixer& inner, hypic::model_layout const& layout)
      : attention_change(inner), layout_(layout) {}
  void attention(std::int32_t layer, hypic::tensor_view<float const, 3> q, hypic::tensor_view<float const, 3> k,
                 hypic::tensor_view<float const, 3> v, hypic::tensor_view<float, 3> o) override {
    auto const& shape = std::get<hypic::attention_layer>(layout_.layers[static_cast<std::size_t>(layer)]);
    hypic_engine::attend_alone(shape, q, k, v, o);
  }

 private:
  hypic::model_layout const& layout_;
};

mixer_front without_attention() {
  return [](hypic_engine::token_mixer& inner) { return std::make_unique<no_attention>(inner); };
}

mixer_front with_own_attention(hypic::model_layout const& layout) {
  return [&layout](hypic_engine::token_mixer& inner) { return std::make_unique<own_attention>(inner, layout); };
}

/// Forwards what a plan says into slot 0 of `memory`, going on from there where `resumes`; gives each layer's rows.
std::vector<layer_rows> forward(hypic_engine::model const& with, hypic::request_plan const& plan, bool resumes,
                                canonical_segments const& segments, mixer_front const& front,
                                hypic_engine::request_memory& memory, int threads) {
  auto const batch = take(hypic::plan_batch({{plan, resumes ? 0 : -1, 0}}), "the batch");
  std::vector<hypic::record_view> records;
  for (auto const& key : batch.records) records.push_back(segments.at(key).record.view());
  auto const assembler = take(hypic::assembler::make(with.layout(), batch, records, 1), "the batch");
  hypic_engine::assembly_mixer inner(assembler, memory, {0}, threads);
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> positions;
  auto const rows = hypic_engine::rows_of(batch, tokens, positions);
  return recorded(inner, with.layout(), front,
                  [&](hypic_engine::token_mixer& mixer) { with.forward(rows, mixer, threads); });
}

/// Full recompute, a document at a time: the rows of each, and what stood in memory before it.
struct full_run {
  hypic::request_plan plan;
  std::vector<std::vector<layer_rows>> rows;
  std::vector<hypic_engine::request_memory> before;
  hypic_engine::request_memory after;
};

full_run recompute(hypic_engine::model const& with, std::vector<hypic::prompt_span> spans, mixer_front const& front,
                   int threads) {
  for (auto& span : spans) span.kind = hypic::span_kind::fresh;
  auto plan = take(hypic::plan_request(with.layout(), spans, {}), "the prompt");
  hypic_engine::request_memory memory(with.layout(), 1, plan.prompt_tokens);
  std::vector<std::vector<layer_rows>> rows;
  std::vector<hypic_engine::request_memory> before;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    before.push_back(memory);
    auto const piece = take(hypic::slice(plan, static_cast<std::int64_t>(i), 1), "a document");
    rows.push_back(forward(with, piece, i > 0, {}, front, memory, threads));
  }
  return {std::move(plan), std::move(rows), std::move(before), std::move(memory)};
}

/// Sums of squares of differences and of what is right.
struct squares {
  double difference = 0.0;
  double size = 0.0;

  void add(std::span<float const> found, std::span<float const> wanted) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      auto const d = static_cast<double>(found[i]) - static_cast<double>(wanted[i]);
      difference += d * d;
      size += static_cast<double>(wanted[i]) * static_cast<double>(wanted[i]);
    }
  }
  double relative() const { return std::sqrt(difference / std::max(size, 1e-60)); }
};

std::span<float const> row_of(hypic_engine::buffer const& rows, std::int64_t row) {
  return std::span(rows.data())
      .subspan(static_cast<std::size_t>(row * rows.width()), static_cast<std::size_t>(rows.width()));
}

/// One document's rows, wherever a run keeps them.
struct document_rows {
  std::vector<layer_rows> const* layers;
  std::int64_t first_row;
};

class evidence_run {
 public:
  evidence_run(hypic_engine::model const& with, document_use use, int threads)
      : with_(with), use_(use), threads_(threads) {}

  void add(hypic_engine::document_prompt const& prompt) {
    std::vector<hypic::prompt_span> spans;
    for (auto const& tokens : prompt.documents)
      spans.push_back(use_ == document_use::cached ? cached_span_of(with_, tokens) : fresh_span_of(tokens));
    add_states(spans, without_attention(), "state_no_attention");
    auto const [full, segments] = add_states(spans, {}, "state");
    add_attention(full);
    add_distances(spans, full, segments);
    spans.push_back(fresh_span_of(prompt.query));
    add_seams(spans);
    ++prompts_;
  }

  evidence result(std::string const& name) const {
    evidence made;
    for (auto const& [place, sum] : drift_) made.drift.push_back({name, place.first, place.second, sum.relative()});
    for (std::size_t i = 0; i < seams.size(); ++i) made.seam.push_back({name, seams[i], kl_[i] / prompts_});
    for (auto const& [place, sums] : distances_) {
      auto const mean = [](std::vector<double> const& errors) {
        return errors.empty() ? std::numeric_limits<double>::quiet_NaN()
                              : std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(errors.size());
      };
      made.distances.push_back({name, place.first, place.second, mean(sums.hidden), mean(sums.attention)});
    }
    return made;
  }

 private:
  struct distance_errors {
    std::vector<double> hidden, attention;
  };

  template <class Layer, class Fn>
  void each_layer(Fn fn) const {
    for (std::size_t l = 0; l < with_.layout().layers.size(); ++l)
      if (std::holds_alternative<Layer>(with_.layout().layers[l])) fn(static_cast<std::int32_t>(l));
  }

  /// States after the last document, without a seam and with one.
  std::pair<full_run, canonical_segments> add_states(std::vector<hypic::prompt_span> const& spans,
                                                     mixer_front const& front, std::string const& part) {
    auto full = recompute(with_, spans, front, threads_);
    auto segments = compute_segments(with_, spans, threads_, front);
    for (auto const seam : {0, usual_seam}) {
      auto const plan = take(hypic::plan_request(with_.layout(), spans, {.seam_rows = seam}), "the prompt");
      hypic_engine::request_memory memory(with_.layout(), 1, plan.prompt_tokens);
      forward(with_, plan, false, segments, front, memory, threads_);
      each_layer<hypic::linear_layer>([&](std::int32_t layer) {
        auto const found = memory.states(layer), wanted = full.after.states(layer);
        auto const count = static_cast<std::size_t>(found.size());
        drift_[{layer, part + (seam > 0 ? "_seam" : "")}].add({found.data, count}, {wanted.data, count});
      });
    }
    return {std::move(full), std::move(segments)};
  }

  /// Keys, values and outputs of attention to one's own document, everything else being full recompute's.
  void add_attention(full_run const& full) {
    auto const front = use_ == document_use::cached ? with_own_attention(with_.layout()) : mixer_front{};
    for (std::size_t i = 1; i < full.rows.size(); ++i) {
      auto const piece = take(hypic::slice(full.plan, static_cast<std::int64_t>(i), 1), "a document");
      auto memory = full.before[i];
      auto const rows = forward(with_, piece, true, {}, front, memory, threads_);
      each_layer<hypic::attention_layer>([&](std::int32_t layer) {
        auto const& found = rows[static_cast<std::size_t>(layer)];
        auto const& wanted = full.rows[i][static_cast<std::size_t>(layer)];
        drift_[{layer, "keys"}].add(found.k.data(), wanted.k.data());
        drift_[{layer, "values"}].add(found.v.data(), wanted.v.data());
        drift_[{layer, "attention"}].add(found.o.data(), wanted.o.data());
      });
    }
  }

  void add_distances(std::vector<hypic::prompt_span> const& spans, full_run const& full,
                     canonical_segments const& segments) {
    std::vector<layer_rows> forwarded;
    if (use_ == document_use::fresh) {
      hypic_engine::request_memory memory(with_.layout(), 1, full.plan.prompt_tokens);
      forwarded = forward(with_, full.plan, false, {}, {}, memory, threads_);
    }
    for (std::size_t i = 1; i < spans.size(); ++i) {
      auto const alone = use_ == document_use::fresh ? document_rows{&forwarded, full.plan.spans[i].first_row}
                                                     : document_rows{&segments.at(spans[i].key).rows, 0};
      for (auto const distance : distances) {
        if (distance >= full.plan.spans[i].tokens) continue;
        for (std::size_t l = 0; l < full.rows[i].size(); ++l) {
          auto& errors = distances_[{static_cast<std::int32_t>(l), distance}];
          auto const error = [&](hypic_engine::buffer const& found, hypic_engine::buffer const& wanted) {
            squares sum;
            sum.add(row_of(found, alone.first_row + distance), row_of(wanted, distance));
            return sum.relative();
          };
          errors.hidden.push_back(error((*alone.layers)[l].hidden, full.rows[i][l].hidden));
          if (std::holds_alternative<hypic::attention_layer>(with_.layout().layers[l]))
            errors.attention.push_back(error((*alone.layers)[l].o, full.rows[i][l].o));
        }
      }
    }
  }

  /// The query's logits for each seam, from records that keep the longest one's rows.
  void add_seams(std::vector<hypic::prompt_span> const& spans) {
    auto fresh = spans;
    for (auto& span : fresh) span.kind = hypic::span_kind::fresh;
    auto const full = logits(fresh, 0);
    for (std::size_t i = 0; i < seams.size(); ++i) kl_[i] += mean_kl(full, logits(spans, seams[i]));
  }

  hypic_engine::buffer logits(std::vector<hypic::prompt_span> const& spans, std::int32_t seam) {
    hypic_engine::engine serving(with_, store_, {.seam_rows = seam, .threads = threads_});
    return std::move(hypic_engine::serve(serving, spans).result.logits);
  }

  static double mean_kl(hypic_engine::buffer const& full, hypic_engine::buffer const& other) {
    double sum = 0.0;
    for (std::int64_t row = 0; row < full.rows(); ++row) {
      auto const p = hypic_engine::log_softmax(full.view(), row), q = hypic_engine::log_softmax(other.view(), row);
      for (std::size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
    }
    return std::max(sum / static_cast<double>(full.rows()), 0.0);  // rounding may leave less than nothing
  }

  hypic_engine::model const& with_;
  document_use use_;
  int threads_;
  hypic::memory_store store_{std::int64_t{1} << 40};
  double prompts_ = 0.0;
  std::map<std::pair<std::int32_t, std::string>, squares> drift_;
  std::array<double, seams.size()> kl_{};
  std::map<std::pair<std::int32_t, std::int64_t>, distance_errors> distances_;
};

// ---- families ----

constexpr hypic::state_dims family_dims{4, 4, 64, 64};
constexpr std::int64_t family_tokens = 512;
constexpr std::int32_t family_head_rows = 8;

template <hypic::state_family F>
double prefill_seconds(std::uint64_t seed) {
  constexpr int runs = 5;
  auto const chain = random_chain(F::id, 1, family_tokens, seed);
  auto const plan = take(hypic::plan_segment_prefill(F::id, chain.shape.dims, chain.shape.options, family_head_rows,
                                                     family_tokens, 1, {{.rows = family_tokens, .final_slot = 0}}),
                         "the plan of a family");
  auto const& dims = chain.shape.dims;
  auto const elements = hypic::operator_elements(F::form, dims.key_dim);
  auto const zeros = [](std::int64_t count) { return std::vector<float>(static_cast<std::size_t>(count)); };
  auto o = zeros(family_tokens * dims.value_heads * dims.value_dim),
       states = zeros(dims.value_heads * dims.state_elements());
  auto end_states = states, operators = zeros(dims.value_heads * elements);
  hypic::summary_view const body{hypic::dense_view(operators.data(), dims.value_heads, elements),
                                 hypic::dense_view(end_states.data(), dims.value_heads, dims.key_dim, dims.value_dim)};
  std::vector<std::byte> workspace(static_cast<std::size_t>(plan.workspace_bytes(1)));
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < runs; ++run) {
    auto const start = std::chrono::steady_clock::now();
    check(hypic::segment_prefill<F>(
              plan, chain.rows.view(chain.shape),
              {.o = hypic::dense_view(o.data(), family_tokens, dims.value_heads, dims.value_dim),
               .states = hypic::dense_view(states.data(), 1, dims.value_heads, dims.key_dim, dims.value_dim),
               .bodies = {&body, 1}},
              {.workspace = workspace}),
          "the prefill of a family");
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

std::string_view name_of_form(hypic::operator_form form) {
  return form == hypic::operator_form::scalar     ? "scalar"
         : form == hypic::operator_form::diagonal ? "diagonal"
                                                  : "dense";
}

/// The bytes of a layer's record, convolution aside: W head rows and a body, or all rows where W is the segment.
std::int64_t record_bytes(hypic::family_id family, std::int32_t head_rows) {
  hypic::linear_layer layer;
  layer.family = family;
  layer.dims = family_dims;
  hypic::model_layout const layout{.layers = {layer}, .head_rows = head_rows};
  return take(hypic::record_layout::make(layout, family_tokens), "the record of a family").bytes();
}

template <hypic::state_family F>
void add_family(std::vector<family_row>& rows, std::string const& name, double seconds, double of_retnet) {
  std::int64_t const dk = family_dims.key_dim, dv = family_dims.value_dim, heads = family_dims.value_heads;
  auto const product = F::form == hypic::operator_form::dense ? 2 * dk * dk * dv : dk * dv;
  // A step: decay, k v^T added, and for the delta rule what the key holds taken out.
  auto const step = 3 * dk * dv + (F::delta_rule ? 4 * dk * dv : 0);
  rows.push_back({name, std::string(name_of_form(F::form)), record_bytes(F::id, family_head_rows),
                  heads * (product + dk * dv), seconds / of_retnet});
  rows.push_back({name, "rows", record_bytes(F::id, static_cast<std::int32_t>(family_tokens)),
                  heads * family_tokens * step, std::numeric_limits<double>::quiet_NaN()});
}

}  // namespace

evidence run_evidence(std::string const& name, hypic_engine::checkpoint const& loaded,
                      std::vector<hypic_engine::document_prompt> const& prompts, document_use use, int threads,
                      hypic_engine::progress const& tell) {
  hypic_engine::model const with(loaded, kept_rows);
  evidence_run run(with, use, threads);
  std::int64_t done = 0;
  for (auto const& prompt : prompts) {
    run.add(prompt);
    if (tell) tell(++done, static_cast<std::int64_t>(prompts.size()));
  }
  return run.result(name);
}

std::vector<family_row> run_families(std::uint64_t seed) {
  std::vector<family_row> rows;
  auto const of_retnet = prefill_seconds<hypic::retnet>(seed);
  add_family<hypic::retnet>(rows, "retnet", of_retnet, of_retnet);
  add_family<hypic::gla>(rows, "gla", prefill_seconds<hypic::gla>(seed), of_retnet);
  add_family<hypic::gated_deltanet>(rows, "gated_deltanet", prefill_seconds<hypic::gated_deltanet>(seed), of_retnet);
  add_family<hypic::kda>(rows, "kda", prefill_seconds<hypic::kda>(seed), of_retnet);
  return rows;
}

}  // namespace hypic_tables
