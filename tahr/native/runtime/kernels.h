// The table of functions that one instruction set offers for the ops on rows; matmul.h has the table for matrices.
#pragma once

#include "attention.h"
#include "causal_conv.h"
#include "delta_net.h"
#include "elementwise.h"
#include "lora.h"
#include "worker.h"
#include "rope_kv.h"
#include "routing.h"
#include "state_space.h"

namespace tahr {

struct RowKernels {
  void (*norm)(const NormOp&, Worker);
  void (*head_norm)(const HeadNormOp&, Worker);
  void (*columns)(const ColumnsOp&, Worker);
  void (*join_heads)(const JoinHeadsOp&, Worker);
  void (*layer_norm)(const LayerNormOp&, Worker);
  void (*add)(const AddOp&, Worker);
  void (*activate)(const ActivateOp&, Worker);
  void (*softcap)(const SoftcapOp&, Worker);
  void (*clip)(const ClipOp&, Worker);
  void (*temper)(const TemperOp&, Worker);
  void (*gather_rows)(const GatherRowsOp&, Worker);
  void (*with_rows)(const WithRowsOp&, Worker);
  void (*store_rows)(const StoreRowsOp&, Worker);
  void (*cos_sin)(const CosSinOp&, Worker);
  void (*rope_and_cache)(const RopeCacheOp&, Worker);
  void (*attention)(const AttentionOp&, Worker);
  void (*merge_spans)(const AttentionOp&, Worker);  // after `attention`
  void (*causal_conv)(const CausalConvOp&, Worker);
  void (*delta_rule)(const DeltaNetOp&, Worker);
  void (*state_space)(const StateSpaceOp&, Worker);
  void (*gated_norm)(const GatedNormOp&, Worker);
  void (*route)(const RouteOp&, Worker);
  void (*mix)(const MixOp&, Worker);
  void (*lora_shrink)(const LoraOp&, Worker);
  void (*lora_expand)(const LoraOp&, Worker);  // after `lora_shrink`
  bool (*lora_shrink_reads)(const LoraOp&, const Worker&, int64_t, Stretch&);
  bool (*lora_expand_reads)(const LoraOp&, const Worker&, int64_t, Stretch&);
};

// Defined once per instruction set in kernels.cpp: tahr::<isa>::row_kernels.
namespace scalar { extern const RowKernels row_kernels; }
namespace avx2 { extern const RowKernels row_kernels; }
namespace avx512vnni { extern const RowKernels row_kernels; }
namespace neon_dotprod { extern const RowKernels row_kernels; }
namespace neon_i8mm { extern const RowKernels row_kernels; }

}  // namespace tahr
