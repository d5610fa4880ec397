// The table of functions that one instruction set offers for the ops on rows; matmul.h has the table for matrices.
#pragma once

#include "attention.h"
#include "elementwise.h"
#include "worker.h"
#include "rope_kv.h"
#include "routing.h"

namespace tahr {

struct RowKernels {
  void (*norm)(const NormOp&, Lane);
  void (*add)(const AddOp&, Lane);
  void (*activate)(const ActivateOp&, Lane);
  void (*softcap)(const SoftcapOp&, Lane);
  void (*pick)(const PickOp&, Lane);
  void (*angles)(const AnglesOp&, Lane);
  void (*place)(const PlaceOp&, Lane);
  void (*attention)(const AttentionOp&, Lane);
  void (*merge_spans)(const AttentionOp&, Lane);  // after `attention`
  void (*route)(const RouteOp&, Lane);
  void (*mix)(const MixOp&, Lane);
};

// Defined once per instruction set in kernels.cpp: tahr::<isa>::row_kernels.
namespace scalar { extern const RowKernels row_kernels; }
namespace avx2 { extern const RowKernels row_kernels; }
namespace avx512vnni { extern const RowKernels row_kernels; }
namespace neon_dotprod { extern const RowKernels row_kernels; }
namespace neon_i8mm { extern const RowKernels row_kernels; }

}  // namespace tahr
