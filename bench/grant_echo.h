#ifndef LGPU_BENCH_GRANT_ECHO_H_
#define LGPU_BENCH_GRANT_ECHO_H_

#include "lgpu/bytes.h"
#include "proto/wire/frame_channel.h"

namespace lgpu::bench {

/// Answers every Grow with one chunk, as a daemon on a null backend does, but without a ledger. Returns when
/// the channel ends.
void EchoGrants(wire::FrameChannel& channel, Bytes bytes);

}  // namespace lgpu::bench

#endif  // LGPU_BENCH_GRANT_ECHO_H_
