// SPDX-License-Identifier: Apache-2.0
#include "oracle/recurrence_oracle.hpp"

#include <cmath>
#include <utility>

namespace oracle {

head::head(recurrence law, std::size_t key_dim, std::size_t value_dim)
    : law_(law), key_dim_(key_dim), value_dim_(value_dim) {
  start();
}

bool head::per_channel() const { return law_ == recurrence::diagonal_decay || law_ == recurrence::diagonal_delta_rule; }

bool head::delta() const { return law_ == recurrence::delta_rule || law_ == recurrence::diagonal_delta_rule; }

void head::start() { start(std::vector<double>(key_dim_ * value_dim_, 0.0)); }

void head::start(std::vector<double> state) {
  state_ = std::move(state);
  log_transition_.assign(per_channel() ? key_dim_ : 1, 0.0);
  transition_.clear();
  if (!delta()) return;
  transition_.assign(key_dim_ * key_dim_, 0.0);
  for (std::size_t i = 0; i < key_dim_; ++i) transition_[i * key_dim_ + i] = 1.0;
}

// matrix <- A matrix.
void head::map(std::vector<double>& matrix, std::size_t columns, double const* key, double const* log_decay,
               double b) const {
  if (law_ == recurrence::diagonal_decay || law_ == recurrence::diagonal_delta_rule) {
    for (std::size_t i = 0; i < key_dim_; ++i) {
      double const a = std::exp(log_decay[i]);
      for (std::size_t j = 0; j < columns; ++j) matrix[i * columns + j] *= a;
    }
  }
  if (delta()) {
    std::vector<double> projection(columns, 0.0);
    for (std::size_t i = 0; i < key_dim_; ++i) {
      for (std::size_t j = 0; j < columns; ++j) projection[j] += key[i] * matrix[i * columns + j];
    }
    for (std::size_t i = 0; i < key_dim_; ++i) {
      double const scaled = b * key[i];
      for (std::size_t j = 0; j < columns; ++j) matrix[i * columns + j] -= scaled * projection[j];
    }
  }
  if (law_ == recurrence::scalar_decay || law_ == recurrence::delta_rule) {
    double const a = std::exp(log_decay[0]);
    for (double& x : matrix) x *= a;
  }
}

void head::step(double const* key, double const* value, double const* log_decay, double b) {
  map(state_, value_dim_, key, log_decay, b);
  double const weight = delta() ? b : 1.0;
  for (std::size_t i = 0; i < key_dim_; ++i) {
    for (std::size_t j = 0; j < value_dim_; ++j) state_[i * value_dim_ + j] += weight * key[i] * value[j];
  }
  if (delta()) map(transition_, key_dim_, key, log_decay, b);
  for (std::size_t i = 0; i < log_transition_.size(); ++i) log_transition_[i] += log_decay[i];
}

std::vector<double> head::output(double const* query, double scale) const {
  std::vector<double> out(value_dim_, 0.0);
  for (std::size_t i = 0; i < key_dim_; ++i) {
    for (std::size_t j = 0; j < value_dim_; ++j) out[j] += query[i] * state_[i * value_dim_ + j];
  }
  for (double& x : out) x *= scale;
  return out;
}

std::vector<double> head::transition() const {
  if (delta()) return transition_;
  std::vector<double> dense(key_dim_ * key_dim_, 0.0);
  for (std::size_t i = 0; i < key_dim_; ++i) {
    dense[i * key_dim_ + i] = std::exp(log_transition_[per_channel() ? i : 0]);
  }
  return dense;
}

std::vector<double> normalized(std::vector<double> x, double epsilon) {
  double squares = 0.0;
  for (double const value : x) squares += value * value;
  double const length = std::sqrt(squares + epsilon);
  for (double& value : x) value /= length;
  return x;
}

std::vector<double> turned(std::vector<double> x, std::vector<double> const& frequencies, bool interleaved,
                           double position) {
  std::size_t const pairs = frequencies.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    double& first = x[interleaved ? 2 * i : i];
    double& second = x[interleaved ? 2 * i + 1 : i + pairs];
    double const c = std::cos(position * frequencies[i]);
    double const s = std::sin(position * frequencies[i]);
    double const turned_first = c * first - s * second;
    second = s * first + c * second;
    first = turned_first;
  }
  return x;
}

std::vector<double> product(std::vector<double> const& left, std::vector<double> const& right, std::size_t rows,
                            std::size_t inner, std::size_t columns) {
  std::vector<double> out(rows * columns, 0.0);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t m = 0; m < inner; ++m) {
      double const factor = left[i * inner + m];
      for (std::size_t j = 0; j < columns; ++j) out[i * columns + j] += factor * right[m * columns + j];
    }
  }
  return out;
}

}  // namespace oracle
