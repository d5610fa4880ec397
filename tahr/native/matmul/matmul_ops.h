// The ops of one instruction set, as the table in matmul.cpp collects them.
#pragma once

#include "matmul.h"

namespace tahr::TAHR_ISA {

void quantise(const QuantiseOp& op, Lane lane);
void linear(const LinearOp& op, Lane lane);
Stretch linear_reads_first(const LinearOp& op, const Lane& lane);
void group(const GroupOp& op, Lane lane);
void experts(const ExpertsOp& op, Lane lane);
void embed(const EmbedOp& op, Lane lane);
void roof(const RoofOp& op, Lane lane);
int64_t roof_work(Roof kind);

}  // namespace tahr::TAHR_ISA
