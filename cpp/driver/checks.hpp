// What is checked.
#pragma once

#include "driver/cases.hpp"

namespace depthgauge::driver {

// Numbers: bits that do not depend on threads or on the batch, adjointness, statistics, weight gradients, and
// non-finite examples that stay to themselves.
template <class T>
void check_numbers(const Case& c, Target target);

// Calls: several at once, stopped ones, and, where asked for, those of a forked child.
template <class T>
void check_calls(const Case& c, Target target, bool fork);

// Jacobians: against tangents, as sums of path orders, and against graded products.
template <class T>
void check_jacobians(const Case& c, Target target);

// Singular values.
template <class T>
void check_spectra(Target target, bool quick);

// Singular values to high relative accuracy, of matrices and of products.
template <class T>
void check_graded(Target target);

// Random normals.
template <class T>
void check_random(Target target);

// The pool of threads by itself.
void check_pool();

// Batches that its threads divide among them.
void check_work_queue();

}  // namespace depthgauge::driver
