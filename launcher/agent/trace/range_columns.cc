#include "cohort/launcher/agent/trace/range_columns.h"

#include <utility>

#include "cohort/runtime/segment/call_names.h"

namespace cohort::launcher {

void RangeColumns::Add(const runtime::RangeRecord& range) {
  const auto [name, fresh] = names_.emplace(runtime::PrintableText(range.name, sizeof range.name),
                                            static_cast<uint32_t>(columns_->names_size()));
  if (fresh) columns_->add_names(name->first);
  columns_->add_name(name->second);
  columns_->add_lane(static_cast<uint32_t>(range.lane));
  columns_->add_line(range.line);
  columns_->add_number(range.number);
  columns_->add_start_ns(static_cast<int64_t>(range.start_ns - std::exchange(last_start_ns_, range.start_ns)));
  columns_->add_length_ns(range.end_ns - range.start_ns);
}

}  // namespace cohort::launcher
