// The terms of a rank of a job of four in a handshake.
#pragma once

#include "cohort/comm/transport/tcp/handshake.h"

namespace cohort::comm::tcp {

inline HandshakeTerms TermsOf(int rank) { return {"secret", "job", 1, rank, 4, "configuration"}; }

}  // namespace cohort::comm::tcp
