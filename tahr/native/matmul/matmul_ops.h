// The ops of one instruction set, as the table in matmul.cpp collects them.
#pragma once

#include "matmul.h"

namespace tahr::TAHR_ISA {

void quantise(const QuantiseOp& op, Worker worker);
void linear(const LinearOp& op, Worker worker);
Stretch linear_reads_first(const LinearOp& op, const Worker& worker);
void group(const GroupOp& op, Worker worker);
void experts(const ExpertsOp& op, Worker worker);
void embed(const EmbedOp& op, Worker worker);
void roof(const RoofOp& op, Worker worker);
int64_t roof_work(Roof kind);

}  // namespace tahr::TAHR_ISA
