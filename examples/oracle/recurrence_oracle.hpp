// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

/// The sequential recurrences in fp64, one token after the other, as their papers state them. This is what the library
/// is measured against, so it uses nothing of the library: no header, no type, no form of its algebra.
namespace oracle {

enum class recurrence {
  scalar_decay,         ///< S = a S + k v^T
  diagonal_decay,       ///< S = Diag(a) S + k v^T
  delta_rule,           ///< S = a (I - b k k^T) S + b k v^T
  diagonal_delta_rule,  ///< S = (I - b k k^T) Diag(a) S + b k v^T
};

/// One head: its state S [Dk, Dv] and the operator T of the tokens since `start`.
class head {
 public:
  head(recurrence law, std::size_t key_dim, std::size_t value_dim);

  /// The neutral element: T = I, S = 0 or the given state.
  void start();
  void start(std::vector<double> state);

  /// One token. `log_decay` is natural, one value or Dk of them; -inf is a reset. `b` is read by the delta rules alone.
  void step(double const* key, double const* value, double const* log_decay, double b);

  /// scale S^T q, of the tokens so far.
  std::vector<double> output(double const* query, double scale) const;

  std::vector<double> const& state() const { return state_; }
  /// T as [Dk, Dk], whatever the law.
  std::vector<double> transition() const;
  /// The sums of log decays, one or Dk of them: all of T for the laws without a delta rule.
  std::vector<double> const& log_transition() const { return log_transition_; }

 private:
  bool per_channel() const;
  bool delta() const;
  void map(std::vector<double>& matrix, std::size_t columns, double const* key, double const* log_decay,
           double b) const;

  recurrence law_;
  std::size_t key_dim_;
  std::size_t value_dim_;
  std::vector<double> state_;
  std::vector<double> transition_;      // of the delta rules
  std::vector<double> log_transition_;  // of the others
};

/// x / sqrt(|x|^2 + epsilon).
std::vector<double> normalized(std::vector<double> x, double epsilon);

/// Turns pair i of `x` by the angle position * frequencies[i]. Pairs are (i, i + frequencies.size()), or (2i, 2i + 1).
std::vector<double> turned(std::vector<double> x, std::vector<double> const& frequencies, bool interleaved,
                           double position);

/// Dense products for checks: [rows, inner] times [inner, columns].
std::vector<double> product(std::vector<double> const& left, std::vector<double> const& right, std::size_t rows,
                            std::size_t inner, std::size_t columns);

}  // namespace oracle
