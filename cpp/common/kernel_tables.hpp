// What makes the table of kernels of one instruction set: one strong symbol for each of them and each precision.
#pragma once

#define DG_DECLARE_TABLES_OF(target, Table) \
  namespace target {                        \
  void get_kernels(Table<float>* out);      \
  void get_kernels(Table<double>* out);     \
  }

#define DG_DECLARE_TABLES(Table)        \
  DG_DECLARE_TABLES_OF(baseline, Table) \
  DG_DECLARE_TABLES_OF(v3, Table)       \
  DG_DECLARE_TABLES_OF(v4, Table)
