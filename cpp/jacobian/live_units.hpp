// The hidden units that are alive at one example, and their columns of a matrix.
#pragma once

#include "jacobian/tiles.hpp"
#include "stack/layer.hpp"

namespace {

// The hidden units whose derivative is not exactly 0, and the derivatives times `scale`.
template <class T>
int64_t find_live_units(const Equation& eq, const Tape<T>& tape, int lane, T scale, int32_t* units, T* slope,
                        T* gate_slope) {
  int64_t live = 0;
  if (tape.positive) {
    const T other = eq.activation == Activation::relu ? T(0) : static_cast<T>(eq.slope);
    for (int64_t j = 0; j < eq.hidden; ++j) {
      const T s = (tape.positive[j] >> lane) & 1 ? T(1) : other;
      units[live] = static_cast<int32_t>(j);
      slope[live] = s * scale;
      live += s != 0;
    }
  } else {
    for (int64_t j = 0; j < eq.hidden; ++j) {
      const T s = tape.derivative[j * kLanes<T> + lane];
      const T value = tape.gate_value ? tape.gate_value[j * kLanes<T> + lane] : T(0);
      units[live] = static_cast<int32_t>(j);
      // In a gated branch the derivative is that of the gate's product, and phi that of the other.
      slope[live] = (tape.gate_value ? value : s) * scale;
      if (tape.gate_value) gate_slope[live] = s * scale;
      live += s != 0 || value != 0;
    }
  }
  return live;
}

// Where vectors can be permuted by 32-bit words, live units are picked a vector at a time.
#if defined(__AVX2__)
constexpr bool kPermutes = true;
#else
constexpr bool kPermutes = false;
#endif
constexpr int kWords = kVectorBytes / 4;

template <class T>
DG_INLINE Vec<T> permute_words(Vec<T> v, const int32_t* words) {
#if defined(__AVX512F__)
  return bit_cast<Vec<T>>(_mm512_permutexvar_ps(_mm512_loadu_si512(words), bit_cast<__m512>(v)));
#elif defined(__AVX2__)
  const auto w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  return bit_cast<Vec<T>>(_mm256_permutevar8x32_ps(bit_cast<__m256>(v), w));
#else
  static_cast<void>(words);
  return v;
#endif
}

// Picks the live units out of a row of all hidden ones.
template <class T>
struct Picker {
  const int32_t* units;
  int64_t live, hidden;
  int32_t* words;   // of each whole vector of hidden units, those that bring its live ones to the front
  int32_t* starts;  // how many are live before it

  // Integers of workspace.
  static DG_INLINE int64_t workspace(int64_t hidden) { return hidden / kWidth<T> * (kWords + 1); }

  DG_INLINE Picker(const int32_t* live_units, int64_t count, int64_t of, int32_t* memory)
      : units(live_units), live(count), hidden(of), words(memory), starts(memory + of / kWidth<T> * kWords) {
    if (!kPermutes || live == hidden) return;
    constexpr int each = kWords / kWidth<T>;
    int64_t a = 0;
    for (int64_t v = 0; v < hidden / kWidth<T>; ++v) {
      int32_t* const w = words + v * kWords;
      starts[v] = static_cast<int32_t>(a);
      int used = 0;
      for (; a < live && units[a] < (v + 1) * kWidth<T>; ++a)
        for (int i = 0; i < each; ++i) w[used++] = static_cast<int32_t>((units[a] - v * kWidth<T>)*each + i);
      for (; used < kWords; ++used) w[used] = 0;
    }
  }

  // Stores whole vectors at `to`; what comes behind the live units there is of no use.
  DG_INLINE void operator()(const T* row, T* to) const {
    if (live == hidden) {
      int64_t j = 0;
      for (; j + kWidth<T> <= hidden; j += kWidth<T>) store(to + j, load(row + j));
      for (; j < hidden; ++j) to[j] = row[j];
      return;
    }
    int64_t a = 0;
    if (kPermutes) {
      const int64_t whole = hidden / kWidth<T>;
      const int32_t *const word = words, *const start = starts;
      for (int64_t v = 0; v < whole; ++v)
        store(to + start[v], permute_words<T>(load(row + v * kWidth<T>), word + v * kWords));
      a = live;
      while (a > 0 && units[a - 1] >= whole * kWidth<T>) --a;
    }
    for (; a < live; ++a) to[a] = row[units[a]];
  }
};

}  // namespace
