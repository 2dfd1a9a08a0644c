#pragma once

#include <cstddef>
#include <string>

namespace pomona {

constexpr size_t kMaxLastWords = 1000;

/// Ends this process with an exit code, instead of by SIGBUS, when a page of a mapped range cannot be read any more:
/// its file became shorter, or its disk failed. A SIGBUS for any other reason does what it did before.
///
/// @param last_words written to standard error at that moment, a line end behind them; at most kMaxLastWords bytes are.
/// @param exit_code of the process.
/// @return false where the system does not take the handler.
bool end_on_lost_pages(const std::string& last_words, int exit_code);

}  // namespace pomona
