// How a pass divides its work: groups of examples, batches of groups that share weights, and results by group.
#pragma once

#include <vector>

#include "common/buffer.hpp"
#include "common/thread_pool.hpp"
#include "stack/propagation.hpp"

namespace depthgauge::stack {

// One group of examples of one replicate and probe.
struct Unit {
  int64_t probe;
  int64_t replicate;
  int64_t group;
  int examples;
};

// Units [first, last) that share one set of weights.
struct Batch {
  int64_t first;
  int64_t last;
  int64_t set;
};

struct Plan {
  std::vector<Unit> units;
  std::vector<Batch> batches;
  // Units of one replicate and probe follow each other; first_unit[probe * replicates + replicate].
  std::vector<int64_t> first_unit;
};

template <class T>
Plan make_plan(const Stack<T>& stack, int64_t probes, int threads, const std::vector<int64_t>& replicates);

// All replicates, in the order of their weight sets.
template <class T>
std::vector<int64_t> by_set(const Stack<T>& stack);

// One group read from a caller's rows.  Lanes beyond the examples repeat the last one: they hold what is finite
// where that example is.
template <class T>
void read_group(const Rows<T>& rows, int64_t i, int64_t j, const Unit& unit, int64_t d, T* group) {
  for (int lane = 0; lane < kGroup<T>; ++lane) {
    const int64_t b = unit.group * kGroup<T> + (lane < unit.examples ? lane : unit.examples - 1);
    for (int64_t k = 0; k < d; ++k) group[k * kGroup<T> + lane] = rows.at(i, j, b, k);
  }
}

// One group written as rows, one an example, of a contiguous array.
template <class T>
void write_group(const T* group, int64_t d, const Unit& unit, T* rows) {
  for (int lane = 0; lane < unit.examples; ++lane) {
    T* row = rows + (unit.group * kGroup<T> + lane) * d;
    for (int64_t k = 0; k < d; ++k) row[k] = group[k * kGroup<T> + lane];
  }
}

// The parts of a tape that one unit has in one layer.
template <class T>
Tape<T> tape_of(const Stack<T>& stack, const TapeArrays<T>& arrays, const Unit& unit, int64_t layer) {
  const int64_t at = (unit.replicate * stack.depth + layer) * stack.groups() + unit.group;
  const int64_t d = stack.equation.width, m = stack.equation.hidden;
  Tape<T> tape{};
  for (int place = 0; place < kPlaces; ++place)
    if (arrays.factors[place]) tape.factors[place] = arrays.factors[place] + at;
  if (arrays.branch) tape.branch = arrays.branch + at * d * kGroup<T>;
  if (arrays.sum) tape.sum = arrays.sum + at * d * kGroup<T>;
  if (arrays.positive) tape.positive = arrays.positive + at * m;
  if (arrays.derivative) tape.derivative = arrays.derivative + at * m * kGroup<T>;
  if (arrays.gate_value) tape.gate_value = arrays.gate_value + at * m * kGroup<T>;
  if (arrays.activation) tape.activation = arrays.activation + at * m * kGroup<T>;
  return tape;
}

template <class T>
T* state_of(const Stack<T>& stack, T* states, const Unit& unit, int64_t layer) {
  const int64_t at = (unit.replicate * (stack.depth + 1) + layer) * stack.groups() + unit.group;
  return states + at * stack.equation.width * kGroup<T>;
}

}  // namespace depthgauge::stack
