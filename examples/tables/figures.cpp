// SPDX-License-Identifier: Apache-2.0
#include "tables/figures.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <sstream>
#include <string>
#include <utility>

#include "engine/error.hpp"
#include "tables/report.hpp"

namespace hypic_tables {
namespace {

namespace fs = std::filesystem;
using hypic_engine::fail;

// Of middle lightness: they show on white and on near-black.
constexpr std::array colours{"#3b82c4", "#d9822b", "#3f9e6e", "#b05fb5", "#c2504e", "#8a7f3c", "#3aa6a6", "#7d6bd0"};
constexpr auto ink = "#808890";

struct series {
  std::string title;
  std::vector<std::pair<double, double>> points;
};

/// Adds a point to the series of that title, which is made where it is new.
void add(std::vector<series>& all, std::string const& title, double x, double y) {
  auto const at = std::find_if(all.begin(), all.end(), [&](auto const& one) { return one.title == title; });
  auto& one = at == all.end() ? all.emplace_back(series{title, {}}) : *at;
  if (y > 0.0) one.points.emplace_back(x, y);  // the axis is logarithmic
}

struct panel {
  std::string title;
  std::vector<series> all;
};

struct figure {
  std::string name;
  std::string title;
  std::string x_label;
  std::string y_label;
  std::string axis;  ///< gnuplot's own words for the x axis
  std::vector<panel> panels;
};

/// The powers of ten around all points: panels that share an axis can be compared.
std::pair<double, double> y_range(figure const& of) {
  double least = 1.0, most = 1e-12;
  for (auto const& one : of.panels)
    for (auto const& line : one.all)
      for (auto const& [x, y] : line.points) {
        least = std::min(least, y);
        most = std::max(most, y);
      }
  return {std::floor(std::log10(least)), std::ceil(std::log10(most))};
}

std::string script(figure const& of, std::string const& output) {
  std::ostringstream text;
  auto const panels = of.panels.size();
  auto const width = static_cast<double>(240 * panels + 290);
  auto const [least, most] = y_range(of);
  text << "set terminal svg size " << width << ",320 dynamic font 'sans-serif,12'\n"
       << "set output '" << output << "'\n"
       << "set multiplot layout 1," << panels << " margins screen " << 75.0 / width << ',' << 1.0 - 215.0 / width
       << ",0.18,0.78 spacing screen " << 25.0 / width << " title \"" << of.title << "\" textcolor rgb '" << ink
       << "'\n"
       << "set border 3 linecolor rgb '" << ink << "'\nset tics nomirror textcolor rgb '" << ink << "'\n"
       << "set grid ytics linecolor rgb '" << ink << "' linewidth 0.3\nset logscale y\nset mytics 1\n"
       << "set yrange [1e" << least << ":1e" << most << "]\nset format y '10^{%L}'\nunset key\n"
       << of.axis;
  for (auto const& one : of.panels) {
    bool const first = &one == &of.panels.front();
    text << "set title '" << one.title << "' textcolor rgb '" << ink << "'\n"
         << "set xlabel '" << of.x_label << "' textcolor rgb '" << ink << "'\n"
         << "set ylabel '" << (first ? of.y_label : "") << "' textcolor rgb '" << ink << "'\n";
    if (!first) text << "set format y ''\n";
    if (&one == &of.panels.back()) {
      text << "set key at screen " << 1.0 - 10.0 / width << ",0.78 right top reverse Left samplen 1.5 textcolor rgb '"
           << ink << "'\n";
    }
    for (std::size_t i = 0; i < one.all.size(); ++i) {
      text << "$data" << i << " << end\n";
      for (auto const& [x, y] : one.all[i].points) text << x << ' ' << y << '\n';
      text << "end\n";
    }
    text << "plot ";
    for (std::size_t i = 0; i < one.all.size(); ++i)
      text << (i > 0 ? ", " : "") << "$data" << i
           << " using 1:2 with linespoints linewidth 2 pointtype 7 pointsize 0.45 "
           << "linecolor rgb '" << colours[i % colours.size()] << "' title \"" << one.all[i].title << "\" noenhanced";
    text << '\n';
  }
  text << "unset multiplot\n";
  return text.str();
}

/// While it lives, a pipe that nobody reads is an error of the write and not the end of this program.
class ignored_broken_pipe {
 public:
  ignored_broken_pipe() = default;
  ignored_broken_pipe(ignored_broken_pipe const&) = delete;
  ignored_broken_pipe& operator=(ignored_broken_pipe const&) = delete;
  ~ignored_broken_pipe() { std::signal(SIGPIPE, before_); }

 private:
  void (*before_)(int) = std::signal(SIGPIPE, SIG_IGN);
};

/// Runs gnuplot on a script; whether it was content. One that is not there ends before it has read.
bool run_gnuplot(std::string const& input) {
  ignored_broken_pipe const guard;
  auto* const pipe = ::popen("gnuplot - 2>/dev/null", "w");
  if (pipe == nullptr) return false;
  auto const written = std::fwrite(input.data(), 1, input.size(), pipe);
  return ::pclose(pipe) == 0 && written == input.size();
}

/// A panel a checkpoint, filled by fn(panel's series, row).
template <class Row, class Fn>
std::vector<panel> panels_of(std::vector<Row> const& rows, Fn fn) {
  std::vector<panel> panels;
  for (auto const& row : rows) {
    auto const name = short_name(row.checkpoint);
    if (panels.empty() || panels.back().title != name) panels.push_back({name, {}});
    fn(panels.back().all, row);
  }
  return panels;
}

figure drift_figure(evidence const& of) {
  return {"drift",
          "Drift from full recompute, by layer",
          "layer",
          "relative error",
          "set xrange [0:*]\n",
          panels_of(of.drift, [](auto& all, drift_row const& row) { add(all, row.part, row.layer, row.error); })};
}

figure seam_figure(evidence const& of) {
  figure made{"seam",    "What the seam buys", "rows of seam, w", "KL(full || reused), nats", "set xtics 0,4,16\n",
              {{"", {}}}};
  for (auto const& row : of.seam) add(made.panels.front().all, short_name(row.checkpoint), row.seam_rows, row.kl);
  return made;
}

figure distance_figure(evidence const& of) {
  // One position to the right of the distance, so that a logarithmic axis shows the first token.
  return {"distance",
          "Rows computed alone, by distance from the first token",
          "1 + distance, tokens",
          "relative error of hidden rows",
          "set logscale x 2\n",
          panels_of(of.distances, [](auto& all, distance_row const& row) {
            add(all, "layer " + std::to_string(row.layer), static_cast<double>(row.distance) + 1.0, row.hidden_error);
          })};
}

figure quality_figure(std::vector<end_to_end_row> const& rows) {
  return {"quality",
          "Quality by mode, documents of 128 tokens",
          "documents",
          "KL(full || mode), nats",
          "set logscale x 2\n",
          panels_of(rows, [](auto& all, end_to_end_row const& row) {
            bool const shown = row.shape.segment_tokens == 128 && row.mode != "full" && row.mode != "prefix";
            if (shown) add(all, row.mode, static_cast<double>(row.shape.segments), row.kl);
          })};
}

}  // namespace

void require_figures(fs::path const& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    fail(hypic_engine::in_quotes(folder.string()), ": found no such folder; expected one to draw figures in");
  if (::access(folder.c_str(), W_OK) != 0)
    fail(hypic_engine::in_quotes(folder.string()), ": found a folder that cannot be written; expected a writable one");
  if (!run_gnuplot("set terminal svg\n"))
    fail("gnuplot: found none that runs and draws SVG; expected one for --figures");
}

void draw_figures(evidence const& of, std::vector<end_to_end_row> const& quality, fs::path const& folder) {
  std::array const figures{drift_figure(of), seam_figure(of), distance_figure(of), quality_figure(quality)};
  std::vector<std::pair<fs::path, fs::path>> drawn;
  for (auto const& one : figures) {
    auto const part = folder / (one.name + ".svg.part");
    drawn.emplace_back(part, folder / (one.name + ".svg"));
    if (run_gnuplot(script(one, part.string()))) continue;
    std::error_code ignored;
    for (auto const& [unfinished, finished] : drawn) fs::remove(unfinished, ignored);
    fail("gnuplot: found an error in drawing ", one.name, ".svg; expected none");
  }
  for (auto const& [part, finished] : drawn) fs::rename(part, finished);
}

}  // namespace hypic_tables
