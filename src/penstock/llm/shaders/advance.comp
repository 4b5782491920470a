// Advances the position by `count` tokens, after a batch from which no token is sampled.
//
//   state   its word POSITION
//
// One invocation.

layout(local_size_x = 1) in;

layout(binding = 0) buffer State { uint state[]; };
layout(push_constant) uniform Arguments { uint count; };

void main() { state[POSITION] += count; }
