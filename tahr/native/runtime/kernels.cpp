#include "kernels.h"

namespace tahr::TAHR_ISA {

void norm(const NormOp&, Worker);
void head_norm(const HeadNormOp&, Worker);
void columns(const ColumnsOp&, Worker);
void join_heads(const JoinHeadsOp&, Worker);
void layer_norm(const LayerNormOp&, Worker);
void add(const AddOp&, Worker);
void activate(const ActivateOp&, Worker);
void softcap(const SoftcapOp&, Worker);
void clip(const ClipOp&, Worker);
void temper(const TemperOp&, Worker);
void gather_rows(const GatherRowsOp&, Worker);
void with_rows(const WithRowsOp&, Worker);
void store_rows(const StoreRowsOp&, Worker);
void cos_sin(const CosSinOp&, Worker);
void rope_and_cache(const RopeCacheOp&, Worker);
void attention(const AttentionOp&, Worker);
void merge_spans(const AttentionOp&, Worker);
void causal_conv(const CausalConvOp&, Worker);
void delta_rule(const DeltaNetOp&, Worker);
void state_space(const StateSpaceOp&, Worker);
void gated_norm(const GatedNormOp&, Worker);
void route(const RouteOp&, Worker);
void mix(const MixOp&, Worker);
void lora_shrink(const LoraOp&, Worker);
void lora_expand(const LoraOp&, Worker);
bool lora_shrink_reads(const LoraOp&, const Worker&, int64_t, Stretch&);
bool lora_expand_reads(const LoraOp&, const Worker&, int64_t, Stretch&);

const RowKernels row_kernels = {norm,    head_norm, columns, join_heads, layer_norm,     add,       activate,    softcap, clip, temper, gather_rows,
                                with_rows, store_rows, cos_sin, rope_and_cache, attention, merge_spans, causal_conv, delta_rule, state_space, gated_norm, route,   mix,
                                lora_shrink, lora_expand, lora_shrink_reads, lora_expand_reads};

}  // namespace tahr::TAHR_ISA
