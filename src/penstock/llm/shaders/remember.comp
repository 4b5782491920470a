// Writes the tokens of a batch to the history.
//
//   tokens    uint32, the batch
//   state     its word POSITION is the position of token 0
//   history   uint32, `size` words: the token at position p goes to p % size
//
// An invocation for each token; of tokens with the same place in the history only the last is written.

layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer Tokens { uint tokens[]; };
layout(binding = 1) readonly buffer State { uint state[]; };
layout(binding = 2) writeonly buffer History { uint history[]; };
layout(push_constant) uniform Arguments { uint count; uint size; };

void main() {
    uint token = gl_GlobalInvocationID.x;
    if (token < count && token + size >= count) history[(state[POSITION] + token) % size] = tokens[token];
}
