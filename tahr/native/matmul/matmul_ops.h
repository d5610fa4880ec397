// The ops of one instruction set, as the table in matmul.cpp collects them.
#pragma once

#include "matmul.h"

namespace tahr::TAHR_ISA {

void quantise(const QuantiseOp& op, Worker worker);
void linear(const LinearOp& op, Worker worker);
bool linear_reads(const LinearOp& op, const Worker& worker, int64_t i, Stretch& found);
void group(const GroupOp& op, Worker worker);
void experts(const ExpertsOp& op, Worker worker);
void embed(const EmbedOp& op, Worker worker);
void roof(const RoofOp& op, Worker worker);
int64_t roof_work(Roof kind);

}  // namespace tahr::TAHR_ISA
