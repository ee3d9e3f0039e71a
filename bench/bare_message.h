#ifndef LGPU_BENCH_BARE_MESSAGE_H_
#define LGPU_BENCH_BARE_MESSAGE_H_

#include "base/unique_fd.h"

namespace lgpu::bench {

// The least that a request and a grant could be: 32 bytes one way, 32 bytes and a descriptor back.

/// Sends 32 bytes, and `fd` with them unless it is negative. False: the other end is gone.
bool BareSend(int socket, int fd);
/// Receives them; `fd` gets the descriptor if one came.
bool BareReceive(int socket, UniqueFd& fd);
/// Answers everything with one descriptor until the other end is gone.
void BareEcho(UniqueFd socket);

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_BARE_MESSAGE_H_
