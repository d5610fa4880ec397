#include "kernels.h"

namespace tahr::TAHR_ISA {

void norm(const NormOp&, Lane);
void add(const AddOp&, Lane);
void activate(const ActivateOp&, Lane);
void softcap(const SoftcapOp&, Lane);
void pick(const PickOp&, Lane);
void angles(const AnglesOp&, Lane);
void place(const PlaceOp&, Lane);
void attention(const AttentionOp&, Lane);
void merge_spans(const AttentionOp&, Lane);
void route(const RouteOp&, Lane);
void mix(const MixOp&, Lane);

const RowKernels row_kernels = {norm,  add,       activate,    softcap, pick, angles,
                                place, attention, merge_spans, route,   mix};

}  // namespace tahr::TAHR_ISA
