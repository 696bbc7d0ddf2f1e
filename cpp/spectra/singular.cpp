#include "spectra/singular.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "common/buffer.hpp"
#include "common/dispatch.hpp"
#include "common/thread_pool.hpp"

namespace depthgauge::spectra {
namespace {

template <class T>
Kernels<T> kernels(Target target) {
  Kernels<T> table{};
  DG_DISPATCH(target, get_kernels(&table))
  return table;
}

// A matrix that stands by itself: its memory, in one block.
template <class T>
class Workspace {
 public:
  Workspace(const Kernels<T>& table, int64_t rows, int64_t columns)
      : stride_(table.column_stride(rows)),
        across_(table.column_stride(columns)),
        parts_((columns + kPart - 1) / kPart),
        memory_(stride_ * (columns + 4 + parts_) + 4 * across_),
        columns_(columns) {}

  Columns<T> matrix(int64_t rows) const {
    T* p = memory_.get();
    const auto take = [&](int64_t size) {
      T* const from = p;
      p += size;
      return from;
    };
    Columns<T> c{};
    c.rows = rows;
    c.columns = columns_;
    c.stride = stride_;
    c.a = take(stride_ * columns_);
    for (T** by_row : {&c.u, &c.z, &c.old_u, &c.old_z}) *by_row = take(stride_);
    c.across = across_;
    for (T** by_column : {&c.y, &c.v, &c.old_y, &c.old_v}) *by_column = take(across_);
    return c;
  }
  T* parts() const { return memory_.get() + stride_ * (columns_ + 4) + 4 * across_; }

  // Columns a part of a sweep.  Every part has its own sum, so that bits do not depend on the threads.
  static constexpr int64_t kPart = 32;

 private:
  int64_t stride_, across_, parts_;
  Buffer<T> memory_;
  int64_t columns_;
};

// A work queue for what is done again and again on the same memory: each worker takes the item it had before, whose
// data its core still holds, or any that is left.
class AffinityQueue {
 public:
  static constexpr int kMost = 64;

  explicit AffinityQueue(int count) : count_(count) {}
  int take(int worker) {
    for (int i = 0; i < count_; ++i) {
      const int item = (worker + i) % count_;
      if (!taken_[item].exchange(true, std::memory_order_relaxed)) return item;
    }
    return 0;  // not reached: there are as many items as takers
  }

 private:
  int count_;
  std::atomic<bool> taken_[kMost] = {};
};

// The sweep of one step, in its parts, of which it returns how many there are; `parts` is null where no z is wanted.
template <class T>
int64_t sweep_parts(const Kernels<T>& table, const Columns<T>& c, int64_t k, T* parts, int threads) {
  constexpr int64_t kPart = Workspace<T>::kPart;
  const int64_t first = (k + 1) / kPart, end = (c.columns + kPart - 1) / kPart;
  const auto part = [&](int64_t i) {
    table.sweep(c, k, std::max(k + 1, i * kPart), std::min(c.columns, (i + 1) * kPart),
                parts ? parts + (i - first) * c.stride : nullptr);
  };
  // Below this much work a thread is not worth waking.
  constexpr int64_t kWorth = 40000;
  if (threads > 1 && (c.columns - k) * (c.rows - k) > kWorth) {
    const int workers = std::min(threads, AffinityQueue::kMost);
    AffinityQueue queue(workers);
    parallel(workers, workers, [&](int64_t, int worker) {
      const int item = queue.take(worker);
      for (int64_t i = first; i < end; ++i)
        if (i % workers == item) part(i);
    });
  } else {
    for (int64_t i = first; i < end; ++i) part(i);
  }
  return end - first;
}

// The squares of the entries of a bidiagonal matrix with the same singular values.
template <class T>
void bidiagonalize(const Kernels<T>& table, Columns<T> c, T* parts, T* q, T* e, int64_t step, int threads,
                   const Stop& stop) {
  for (int64_t k = 0; k < c.columns; ++k) {
    q[k * step] = table.reflect_column(c, k);
    if (k + 1 == c.columns || stop()) return;
    const int64_t count = sweep_parts(table, c, k, parts, threads);
    e[k * step] = table.reflect_row(c, k, parts, count);
  }
}

// Tall enough that it is less work to go on with a triangular factor than with all rows.
bool is_tall(int64_t rows, int64_t columns) { return 3 * rows > 5 * columns && rows * columns > 4096; }

// Brings tall matrices to triangular form, some rows at a time.
template <class T>
class Triangular {
 public:
  Triangular(const Kernels<T>& table, int64_t rows, int64_t columns)
      : table_(table),
        columns_(columns),
        block_(std::min(rows, std::max<int64_t>(4 * columns, 256))),
        workspace_(table, block_, columns) {}

  // The triangular factor of a matrix, made in `r`, which has columns * columns elements.  It is scaled as `scan` says.
  Matrix reduce(const Matrix& matrix, const Scan& scan, T* r, int threads, const Stop& stop) const {
    std::fill_n(r, columns_ * columns_, T(0));
    for (int64_t row = 0; row < matrix.rows && !stop();) {
      const int64_t kept = row ? columns_ : 0, count = std::min(matrix.rows - row, block_ - kept);
      Columns<T> c = workspace_.matrix(kept + count);
      Matrix some = matrix;
      some.data += row * matrix.row_stride;
      some.rows = count;
      table_.pack_columns(some, scan, kept ? r : nullptr, c);
      for (int64_t k = 0; k < columns_; ++k) {
        table_.reflect_column(c, k);
        if (k + 1 < columns_) sweep_parts<T>(table_, c, k, nullptr, threads);
        table_.keep_row(c, k, r + k * columns_);
      }
      row += count;
    }
    // Its transpose has the same singular values, and contiguous columns.
    constexpr auto kSize = static_cast<int64_t>(sizeof(T));
    return {reinterpret_cast<const char*>(r), columns_, columns_, kSize, columns_ * kSize};
  }

 private:
  const Kernels<T>& table_;
  int64_t columns_, block_;
  Workspace<T> workspace_;
};

template <class T>
class SingularValues {
 public:
  SingularValues(const Batch& batch, T* values, int64_t* exponents, bool* converged, const Resources& resources)
      : batch_(batch),
        values_(values),
        exponents_(exponents),
        converged_(converged),
        resources_(resources),
        table_(kernels<T>(resources.target)),
        count_(batch.axes.count()),
        rows_(std::max(batch.rows, batch.columns)),
        columns_(std::min(batch.rows, batch.columns)),
        tall_(is_tall(rows_, columns_)) {}

  void run() {
    if (columns_ == 0) {
      std::fill_n(exponents_, count_, int64_t{0});
      std::fill_n(converged_, count_, true);
      return;
    }
    const int64_t rows = tall_ ? columns_ : rows_;
    constexpr int64_t kSideBySide = 600 << 10;
    if (rows * columns_ * table_.lanes * static_cast<int64_t>(sizeof(T)) <= kSideBySide)
      side_by_side(rows);
    else
      one_by_one(rows);
  }

 private:
  Matrix matrix(int64_t i) const {
    // Wide matrices are read as their transposes, and so are square ones, whose rows are mostly contiguous.
    const bool transpose = batch_.rows <= batch_.columns;
    return {batch_.data + batch_.axes.offset(i), rows_, columns_, transpose ? batch_.column_stride : batch_.row_stride,
            transpose ? batch_.row_stride : batch_.column_stride};
  }

  // Several vectors of lanes a task hide latencies, if there are enough matrices for all threads: one of them takes a
  // time of about 1, two 1.2, four 2.
  int vectors() const {
    double least = std::numeric_limits<double>::infinity();
    int best = 1;
    for (const auto& [vectors, time] : {std::pair{1, 1.0}, {2, 1.2}, {4, 2.0}}) {
      const int64_t each = int64_t{table_.lanes} * vectors, tasks = (count_ + each - 1) / each;
      const double total = time * static_cast<double>((tasks + resources_.threads - 1) / resources_.threads);
      if (total < least) {
        least = total;
        best = vectors;
      }
    }
    return best;
  }

  void side_by_side(int64_t rows) {
    const int64_t lanes = table_.lanes;
    const int vectors = this->vectors();
    const int64_t each = vectors * lanes, tasks = (count_ + each - 1) / each;
    const int threads = static_cast<int>(std::min<int64_t>(resources_.threads, tasks));
    const int64_t bidiagonal = table_.side_by_side_workspace(rows, columns_);
    const int64_t sweeps = table_.dqds_workspace(columns_, vectors);
    const int64_t squares = columns_ * each, triangle = tall_ ? columns_ * columns_ : 0;
    const int64_t workspace = std::max(bidiagonal, sweeps) + 2 * squares + lanes * triangle;
    const Buffer<T> memory(workspace * threads);
    const auto reducers = make_reducers(threads);
    parallel(threads, tasks, [&](int64_t task, int worker) {
      if (resources_.stop()) return;
      T *const q = memory.get() + worker * workspace, *const e = q + squares;
      T *const triangles = e + squares, *const rest = triangles + lanes * triangle;
      Matrix matrices[kMaxLanes] = {};
      Scan scans[kMaxLanes * kDqdsVectors], packed[kMaxLanes];
      bool done[kMaxLanes * kDqdsVectors];
      const int64_t first = task * each, count = std::min(each, count_ - first);
      for (int64_t v = 0; v < vectors; ++v) {
        const int64_t at = v * lanes, here = std::clamp<int64_t>(count - at, 0, lanes);
        for (int64_t i = 0; i < here; ++i)
          matrices[i] =
              prepare(first + at + i, reducers, worker, triangles + i * triangle, 1, &scans[at + i], &packed[i]);
        table_.side_by_side(matrices, packed, static_cast<int>(here), rows, columns_, q + at, e + at, each, rest);
      }
      table_.dqds(q, e, columns_, vectors, done, rest);
      for (int64_t i = 0; i < count; ++i) finish(first + i, scans[i], q + i, each, done[i]);
    });
  }

  void one_by_one(int64_t rows) {
    // A few matrices share all threads; of many, each has its own.
    const bool shared = count_ < resources_.threads;
    const int outer = shared ? 1 : resources_.threads, inner = shared ? resources_.threads : 1;
    const int vectors = this->vectors();
    // Bidiagonal matrices are gathered, and finished side by side.
    const int64_t each = int64_t{vectors} * table_.lanes, gathered = each * resources_.threads;
    const int64_t sweeps = table_.dqds_workspace(columns_, vectors), squares = columns_ * each;
    const Buffer<T> memory((2 * squares + sweeps) * resources_.threads);
    const Buffer<T> triangles(tall_ ? columns_ * columns_ * outer : 0);
    const auto reducers = make_reducers(outer);
    std::deque<Workspace<T>> workspaces;
    for (int i = 0; i < outer; ++i) workspaces.emplace_back(table_, rows, columns_);
    std::vector<Scan> scans(static_cast<size_t>(gathered));
    for (int64_t first = 0; first < count_; first += gathered) {
      const int64_t count = std::min(gathered, count_ - first), tasks = (count + each - 1) / each;
      const auto squares_of = [&](int64_t i) { return memory.get() + i / each * (2 * squares + sweeps) + i % each; };
      for (int64_t task = 0; task < tasks; ++task) std::fill_n(squares_of(task * each), 2 * squares, T(0));
      parallel(outer, count, [&](int64_t i, int worker) {
        if (resources_.stop()) return;
        Scan packed;
        T* const triangle = triangles.get() + worker * columns_ * columns_;
        const Matrix matrix =
            prepare(first + i, reducers, worker, triangle, inner, &scans[static_cast<size_t>(i)], &packed);
        if (!packed.finite) return;
        const Workspace<T>& workspace = workspaces[static_cast<size_t>(worker)];
        const Columns<T> c = workspace.matrix(rows);
        table_.pack_columns(matrix, packed, nullptr, c);
        T* const q = squares_of(i);
        bidiagonalize(table_, c, workspace.parts(), q, q + squares, each, inner, resources_.stop);
      });
      if (resources_.stop()) return;
      parallel(resources_.threads, tasks, [&](int64_t task, int) {
        bool done[kMaxLanes * kDqdsVectors];
        T* const q = squares_of(task * each);
        table_.dqds(q, q + squares, columns_, vectors, done, q + 2 * squares);
        for (int64_t i = task * each; i < std::min(count, (task + 1) * each); ++i)
          finish(first + i, scans[static_cast<size_t>(i)], squares_of(i), each, done[i % each]);
      });
    }
  }

  using Reducers = std::deque<Triangular<T>>;

  Reducers make_reducers(int workers) const {
    Reducers reducers;
    for (int i = 0; tall_ && i < workers; ++i) reducers.emplace_back(table_, rows_, columns_);
    return reducers;
  }

  // Matrix i, or the triangular factor of a tall one; `packed` says how what is returned is to be scaled.
  Matrix prepare(int64_t i, const Reducers& reducers, int worker, T* triangle, int threads, Scan* scan,
                 Scan* packed) const {
    const Matrix whole = matrix(i);
    *packed = *scan = table_.scan(whole);
    if (!tall_ || !scan->finite) return whole;
    packed->exponent = 0;
    return reducers[static_cast<size_t>(worker)].reduce(whole, *scan, triangle, threads, resources_.stop);
  }

  void finish(int64_t i, const Scan& scan, const T* value, int64_t stride, bool done) const {
    const bool good = scan.finite && done;
    for (int64_t j = 0; j < columns_; ++j)
      values_[i * columns_ + j] = good ? value[j * stride] : std::numeric_limits<T>::quiet_NaN();
    exponents_[i] = scan.exponent;
    converged_[i] = done || !scan.finite;
  }

  const Batch& batch_;
  T* values_;
  int64_t* exponents_;
  bool* converged_;
  const Resources& resources_;
  const Kernels<T> table_;
  int64_t count_, rows_, columns_;
  bool tall_;
};

}  // namespace

template <class T>
void singular_values(const Batch& batch, T* values, int64_t* exponents, bool* converged, const Resources& resources) {
  SingularValues<T>(batch, values, exponents, converged, resources).run();
}

template void singular_values(const Batch&, float*, int64_t*, bool*, const Resources&);
template void singular_values(const Batch&, double*, int64_t*, bool*, const Resources&);

}  // namespace depthgauge::spectra
