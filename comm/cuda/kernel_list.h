// All kernels: F(name, body), where body<...>(arguments, thread, threads) is one of comm/cuda/reduce_body.h, and of
// comm/cuda/search_body.h for searches.
// Sums, products and bit operations of signed integers are those of the unsigned ones.
#pragma once

#define COHORT_FOLDS_OF_UNSIGNED(F, type, Format)        \
  F(fold_##type##_sum, Fold, Format, Sum, false)         \
  F(fold_##type##_product, Fold, Format, Product, false) \
  F(fold_##type##_band, Fold, Format, BitAnd, false)     \
  F(fold_##type##_bor, Fold, Format, BitOr, false)       \
  F(fold_##type##_bxor, Fold, Format, BitXor, false)

#define COHORT_FOLDS_OF_INTEGER(F, type, Format)     \
  F(fold_##type##_min, Fold, Format, Minimum, false) \
  F(fold_##type##_max, Fold, Format, Maximum, false) \
  F(fold_##type##_avg, Fold, Format, Sum, true)

#define COHORT_FOLDS_OF_FLOAT(F, type, Format)           \
  F(fold_##type##_sum, Fold, Format, Sum, false)         \
  F(fold_##type##_product, Fold, Format, Product, false) \
  COHORT_FOLDS_OF_INTEGER(F, type, Format)

#define COHORT_CUDA_FOLDS(F)                           \
  COHORT_FOLDS_OF_UNSIGNED(F, uint8, Plain<uint8_t>)   \
  COHORT_FOLDS_OF_UNSIGNED(F, uint16, Plain<uint16_t>) \
  COHORT_FOLDS_OF_UNSIGNED(F, uint32, Plain<uint32_t>) \
  COHORT_FOLDS_OF_UNSIGNED(F, uint64, Plain<uint64_t>) \
  COHORT_FOLDS_OF_INTEGER(F, int8, Plain<int8_t>)      \
  COHORT_FOLDS_OF_INTEGER(F, uint8, Plain<uint8_t>)    \
  COHORT_FOLDS_OF_INTEGER(F, int16, Plain<int16_t>)    \
  COHORT_FOLDS_OF_INTEGER(F, uint16, Plain<uint16_t>)  \
  COHORT_FOLDS_OF_INTEGER(F, int32, Plain<int32_t>)    \
  COHORT_FOLDS_OF_INTEGER(F, uint32, Plain<uint32_t>)  \
  COHORT_FOLDS_OF_INTEGER(F, int64, Plain<int64_t>)    \
  COHORT_FOLDS_OF_INTEGER(F, uint64, Plain<uint64_t>)  \
  COHORT_FOLDS_OF_FLOAT(F, float16, Float16)           \
  COHORT_FOLDS_OF_FLOAT(F, bfloat16, BFloat16)         \
  COHORT_FOLDS_OF_FLOAT(F, float32, Plain<float>)      \
  COHORT_FOLDS_OF_FLOAT(F, float64, Plain<double>)     \
  COHORT_FOLDS_OF_FLOAT(F, float8_e4m3, Float8E4M3)    \
  COHORT_FOLDS_OF_FLOAT(F, float8_e5m2, Float8E5M2)

#define COHORT_CUDA_CONVERSIONS(F)            \
  F(prepare_int8, Prepare, Plain<int8_t>)     \
  F(prepare_uint8, Prepare, Plain<uint8_t>)   \
  F(prepare_int16, Prepare, Plain<int16_t>)   \
  F(prepare_uint16, Prepare, Plain<uint16_t>) \
  F(prepare_int32, Prepare, Plain<int32_t>)   \
  F(prepare_uint32, Prepare, Plain<uint32_t>) \
  F(prepare_int64, Prepare, Plain<int64_t>)   \
  F(prepare_uint64, Prepare, Plain<uint64_t>) \
  F(prepare_float16, Prepare, Float16)        \
  F(prepare_bfloat16, Prepare, BFloat16)      \
  F(prepare_float32, Prepare, Plain<float>)   \
  F(prepare_float64, Prepare, Plain<double>)  \
  F(prepare_float8_e4m3, Prepare, Float8E4M3) \
  F(prepare_float8_e5m2, Prepare, Float8E5M2) \
  F(finish_float16, Finish, Float16)          \
  F(finish_bfloat16, Finish, BFloat16)        \
  F(finish_float8_e4m3, Finish, Float8E4M3)   \
  F(finish_float8_e5m2, Finish, Float8E5M2)

#define COHORT_CUDA_SEARCHES(F)             \
  F(search_float16, Search, Float16)        \
  F(search_bfloat16, Search, BFloat16)      \
  F(search_float32, Search, Plain<float>)   \
  F(search_float64, Search, Plain<double>)  \
  F(search_float8_e4m3, Search, Float8E4M3) \
  F(search_float8_e5m2, Search, Float8E5M2)
