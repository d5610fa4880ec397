#include "sampling.h"

#include <algorithm>
#include <cmath>

#include "sampling_ranking.h"

namespace tahr::TAHR_ISA {

namespace {

constexpr int FIRST_CANDIDATES = 256;  // tokens looked at first: the choice almost always lies within
// Then those so deep, times the temperature if that is above 1; then all. What is typical of an open choice lies deeper.
constexpr double REACH = 8, TYPICAL_REACH = 9, LONG_REACH = 40;

// ---- random numbers: backends/sampling/uniform.py ----

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

double uniform(uint64_t key, uint64_t k) { return double(mixed(key + (k + 1) * 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53; }

// ---- what is known of a whole row, worked out when it is first asked for ----

class Facts {
 public:
  Facts(const Row& row, double temperature, std::vector<float>& columns)
      : row_(row), temperature_(temperature), columns_(columns) {}

  double total() { return known(total_, [&] { return total_weight(row_, 1.0, columns_); }); }
  double total_at_temperature() {
    return temperature_ == 1 ? total() : known(at_temperature_, [&] { return total_weight(row_, temperature_, columns_); });
  }
  // The same of the tokens left when the first `n_dropped` are out, the best of them having the logit `base`.
  double total_of_rest(float base, int n_dropped) { return weight_below(row_, base, temperature_, columns_) - n_dropped; }
  double moment() { return known(moment_, [&] { return mean_depth_times_total(row_, columns_); }); }
  double spread() { return known(spread_, [&] { return sigma(row_, columns_); }); }

 private:
  template <class F>
  double known(double& value, F work_out) {
    if (std::isnan(value)) value = work_out();
    return value;
  }

  const Row& row_;
  const double temperature_;
  std::vector<float>& columns_;
  double total_ = NAN, at_temperature_ = NAN, moment_ = NAN, spread_ = NAN;
};

// ---- the stages ----

// The tokens still in play: the ranks from `begin` to `end`, and all that are not listed while it is `open`. A stage that
// cannot decide without those says that it is unsure, and everything is done again with a longer list.
class Choice {
 public:
  Choice(Ranking& list, Facts& facts, bool open) : list_(list), facts_(facts), end_(list.size()), open_(open) {}

  bool unsure() const { return unsure_; }

  void run(const SampleRow& params, double first_uniform) {
    const bool mirostat = !std::isnan(params.mirostat_mu);
    if (!mirostat && stages_before_temperature(params)) narrow(params, first_uniform);
    if (unsure_) return;
    set_temperature(params.temperature);
    if (mirostat) return keep_weights(std::exp2(-params.mirostat_mu) * mass());
    if (params.top_k != 0) keep_best(params.top_k);
    if (params.min_p != 0) keep_weights(params.min_p * best());
    if (params.top_p != 1) keep_ranks(list_.reaching(list_.before(begin_) + params.top_p * mass()));
  }

  int32_t draw(double uniform_number, double* probability) {
    const double whole = mass();
    const int rank = list_.passing(list_.before(begin_) + uniform_number * whole);
    unsure_ |= open_ && rank >= list_.size();
    const int drawn = std::min(std::max(rank, begin_), end_ - 1);
    *probability = list_.weight(drawn) / whole;
    return list_.token(drawn);
  }

 private:
  // Weight of all tokens still in play.
  double mass() { return (open_ ? (at_temperature_ ? total_at_temperature() : facts_.total()) : list_.before(end_)) - list_.before(begin_); }
  double total_at_temperature() { return begin_ > 0 ? facts_.total_of_rest(list_.base(), begin_) : facts_.total_at_temperature(); }
  double moment() { return open_ ? facts_.moment() - list_.moment(0, begin_) : list_.moment(begin_, end_); }
  double best() { return list_.weight(begin_); }

  double eta(double cutoff) {
    const double whole = mass(), entropy = std::log(whole) + moment() / whole;
    return std::min(cutoff, std::sqrt(cutoff) * std::exp(-entropy));
  }

  static bool stages_before_temperature(const SampleRow& p) {
    return p.top_n_sigma != 0 || p.xtc_probability != 0 || p.typical_p != 1 || p.top_a != 0 || p.eta_cutoff != 0;
  }

  void narrow(const SampleRow& params, double uniform_number) {
    list_.set_temperature(1.0);
    if (params.top_n_sigma != 0) keep_within(params.top_n_sigma * facts_.spread());
    if (params.xtc_probability != 0) exclude_top(params, uniform_number);
    if (params.typical_p != 1 && !unsure_) keep_typical(params.typical_p);
    if (params.top_a != 0 && !unsure_) keep_weights(params.top_a * best() * best() / mass());
    if (params.eta_cutoff != 0 && !unsure_) keep_weights(eta(params.eta_cutoff) * mass());
  }

  void set_temperature(double temperature) {
    temperature_ = temperature;
    at_temperature_ = true;
    list_.set_temperature(temperature, begin_);
  }

  // Keep the ranks before `end`, of those still in play; the best of them always stays.
  void keep_ranks(int end) {
    unsure_ |= open_ && end > list_.size();
    end_ = std::min(end_, std::max(end, begin_ + 1));
    open_ = false;
  }

  void keep_best(double k) { keep_ranks(k < list_.size() ? begin_ + int(k) : list_.size() + int(open_)); }

  void keep_within(double depth) {
    unsure_ |= open_ && depth > list_.reach();
    keep_ranks(list_.within(depth).n);
  }

  void keep_weights(double least) { keep_within(list_.base_depth() - std::log(least) * temperature_); }

  // XTC: of all tokens above the threshold, only the least likely stays.
  void exclude_top(const SampleRow& params, double uniform_number) {
    const double depth = -std::log(params.xtc_threshold * mass());
    const int n_likely = std::min(end_, list_.within(depth).n);
    unsure_ |= open_ && depth > list_.reach();
    if (uniform_number < params.xtc_probability && n_likely > 0) begin_ = std::max(begin_, n_likely - 1);
  }

  // The tokens whose depth is nearest to the mean one (so their surprise is nearest to the entropy), until they make up
  // typical_p; tokens as near as the last of them stay too.
  void keep_typical(double typical_p) {
    const double whole = mass(), middle = moment() / whole, wanted = typical_p * whole;
    const double limit = open_ ? std::max(0.0, list_.reach() - middle) : std::max(middle, list_.reach());
    const Part first{begin_, list_.before(begin_)}, last{end_, list_.before(end_)};
    const auto between = [&](const Part& nearer, const Part& all) {
      return Span{nearer.n > first.n ? nearer : first, all.n < last.n ? all : last};
    };
    const auto around = [&](double radius) {  // what is as near as that, of what is in play
      return between(list_.within(std::nextafter(middle - radius, -1.0)), list_.within(middle + radius));
    };
    const auto enough = [&](double radius) {  // whether that makes it up; whole buckets tell most of the time
      const double above = middle - radius, below = middle + radius;
      if (between(list_.at_most_within(above), list_.at_least_within(below)).weight() >= wanted) return true;
      if (between(list_.at_least_within(above), list_.at_most_within(below)).weight() < wanted) return false;
      return around(radius).weight() >= wanted;
    };
    double least = 0, most = std::min(limit, 0.25);
    while (most < limit && !enough(most)) least = most, most = std::min(limit, 2 * most);
    if (open_ && (middle > list_.reach() || !enough(most))) {
      unsure_ = true;
      return;
    }
    for (int i = 0; i < 64; i++) {
      const double radius = (least + most) / 2;
      (enough(radius) ? most : least) = radius;
      if (i > 12 && around(most).n() - around(least).n() <= 1) break;
    }
    const Span kept = around(enough(least) ? least : most);
    begin_ = std::min(kept.begin.n, end_ - 1);
    end_ = std::max(begin_ + 1, kept.end.n);
    open_ = false;
  }

  using Part = Ranking::Part;
  struct Span {
    Part begin, end;
    int n() const { return end.n - begin.n; }
    double weight() const { return end.weight - begin.weight; }
  };

  Ranking& list_;
  Facts& facts_;
  double temperature_ = 1;
  bool at_temperature_ = false;
  int begin_ = 0, end_;
  bool open_, unsure_ = false;
};

// ---- one row ----

struct Workspace {
  std::vector<float> edited, block_max, columns, scratch;
  Ranking ranking;
};

Workspace& workspace() {
  static thread_local Workspace mine;
  return mine;
}

bool has_edits(const SampleOp& op, int64_t i) {
  return op.edits.begins && (op.edits.begins[i] < op.edits.begins[i + 1] || op.edits.blank[i]);
}

bool has_mask(const SampleOp& op, int64_t i) { return op.masks.words && op.masks.masked[i]; }

float edited_logit(const LogitEdits& edits, int64_t e, float logit) {
  if (edits.before[e] == -INFINITY || edits.after[e] == -INFINITY) return -INFINITY;
  const float value = logit + edits.before[e];
  return (value > 0 ? value / edits.penalty[e] : value * edits.penalty[e]) + edits.after[e];
}

void apply_edits(const LogitEdits& edits, int64_t i, const float* row, std::vector<float>& copy) {
  if (edits.blank[i])
    std::fill(copy.begin(), copy.end(), -INFINITY);
  else
    std::copy(row, row + copy.size(), copy.begin());
  for (int64_t e = edits.begins[i]; e < edits.begins[i + 1]; e++) {
    const auto id = size_t(edits.ids[e]);  // one that the vocabulary does not have is ignored
    if (id < copy.size()) copy[id] = edited_logit(edits, e, row[id]);
  }
}

void apply_mask(const uint32_t* words, std::vector<float>& copy) {
  for (size_t begin = 0; begin < copy.size(); begin += 32) {
    const uint32_t word = words[begin / 32];
    if (word == ~uint32_t{0}) continue;
    const size_t end = std::min(copy.size(), begin + 32);
    for (size_t t = begin; t < end; t++)
      if (!(word >> (t - begin) & 1)) copy[t] = -INFINITY;
  }
}

// The logits of a sample: the model's own where nothing changes them, else a changed copy.
const float* logits_of(const SampleOp& op, int64_t i, std::vector<float>& copy) {
  const float* const row = op.from.row(op.source[i]);
  if (!has_edits(op, i) && !has_mask(op, i)) return row;
  copy.resize(size_t(op.from.n_vocab));
  if (has_edits(op, i))
    apply_edits(op.edits, i, row, copy);
  else
    std::copy(row, row + copy.size(), copy.begin());
  if (has_mask(op, i)) apply_mask(op.masks.words + i * ((op.from.n_vocab + 31) / 32), copy);
  return copy.data();
}

bool temperature_alone(const SampleRow& p) {
  return std::isnan(p.mirostat_mu) && p.top_n_sigma == 0 && p.xtc_probability == 0 && p.typical_p == 1 && p.top_a == 0 &&
         p.eta_cutoff == 0 && p.top_k == 0 && p.min_p == 0 && p.top_p == 1;
}

// How deep the choice can go at most, where the first stage that says so knows it beforehand.
double known_depth(const SampleRow& p, Facts& facts) {
  if (!std::isnan(p.mirostat_mu)) return INFINITY;
  if (p.top_n_sigma != 0) return p.top_n_sigma * facts.spread();
  return p.min_p != 0 ? -std::log(p.min_p) * p.temperature : INFINITY;
}

float just_below(double logit) { return std::nextafter(std::nextafter(float(logit), -INFINITY), -INFINITY); }

// Longer and longer lists, until one settles it: the last holds every token that may be picked.
int32_t choose(const Row& row, const SampleRow& params, Workspace& room, double* probability) {
  const double uniforms[] = {uniform(params.key, 2 * params.counter), uniform(params.key, 2 * params.counter + 1)};
  if (temperature_alone(params)) return draw_from_all(row, params.temperature, uniforms[1], room.columns);
  Facts facts(row, params.temperature, room.columns);
  const double at_least_one = std::max(1.0, params.temperature);
  const double reach = params.typical_p != 1 ? TYPICAL_REACH : REACH;
  const float floors[] = {row.nth_block(FIRST_CANDIDATES, room.scratch), just_below(row.top - known_depth(params, facts)),
                          float(row.top - reach * at_least_one), float(row.top - LONG_REACH * at_least_one)};
  float listed = INFINITY;
  for (float floor : floors) {
    if (!(floor >= LOWEST && floor < listed)) continue;
    listed = floor;
    room.ranking.list(row, floor);
    Choice choice(room.ranking, facts, true);
    choice.run(params, uniforms[0]);
    if (choice.unsure()) continue;
    const int32_t token = choice.draw(uniforms[1], probability);
    if (!choice.unsure()) return token;
  }
  room.ranking.list(row, row.lowest());
  Choice choice(room.ranking, facts, false);
  choice.run(params, uniforms[0]);
  return choice.draw(uniforms[1], probability);
}

int32_t sample_row(const float* logits, int n_vocab, const SampleRow& params, Workspace& room, double* probability) {
  const Row row(logits, n_vocab, room.block_max);
  if (!row.numbers) return NOT_NUMBERS;
  if (row.top < LOWEST) return NOTHING_LEFT;
  return params.temperature == 0 ? row.best : choose(row, params, room, probability);
}

void sample(const SampleOp& op, Worker worker) {
  Workspace& room = workspace();
  for (int64_t i; (i = claim(worker)) < op.n_samples;) {
    op.probabilities[i] = 1;
    const float* const logits = logits_of(op, i, room.edited);
    op.tokens[i] = sample_row(logits, op.from.n_vocab, op.params[i], room, &op.probabilities[i]);
  }
}

void choose_tokens(const ChooseOp& op, Worker worker) {
  Workspace& room = workspace();
  for (int64_t i; (i = claim(worker)) < *op.n_rows;) {
    const float* logits = op.from.row(i);
    if (op.edits.begins && (op.edits.begins[i] < op.edits.begins[i + 1] || op.edits.blank[i])) {
      room.edited.resize(size_t(op.from.n_vocab));
      apply_edits(op.edits, i, logits, room.edited);
      logits = room.edited.data();
    }
    double probability;
    op.tokens[i] = sample_row(logits, op.from.n_vocab, op.params[i], room, &probability);
    op.ids[i] = std::max(op.tokens[i], 0);
  }
}

void logprobs_of_row(const LogprobsOp& op, int64_t i, Workspace& room) {
  const Row row(op.from.row(op.source[i]), op.from.n_vocab, room.block_max);
  op.logprobs[i] = NAN;
  if (!row.numbers || row.top < LOWEST) return;
  const double base = double(row.top) + std::log(total_weight(row, 1.0, room.columns));
  op.logprobs[i] = double(row.logits[op.tokens[i]]) - base;
  if (!op.n_top[i]) return;
  const float floor = row.nth_block(op.n_top[i], room.scratch);
  room.ranking.list(row, floor >= LOWEST ? floor : row.lowest());
  for (int k = 0; k < op.n_top[i] && k < room.ranking.size(); k++) {
    op.top_ids[i * op.width + k] = room.ranking.token(k);
    op.top_values[i * op.width + k] = double(row.top) - room.ranking.depth(k) - base;
  }
}

void logprobs(const LogprobsOp& op, Worker worker) {
  Workspace& room = workspace();
  for (int64_t i; (i = claim(worker)) < op.n_samples;) {
    std::fill_n(op.top_ids + i * op.width, op.width, -1);
    logprobs_of_row(op, i, room);
  }
}

}  // namespace

const SamplingKernels sampling_kernels = {sample, choose_tokens, logprobs};

}  // namespace tahr::TAHR_ISA
