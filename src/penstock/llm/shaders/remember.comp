// Writes the tokens of a batch to the history, and counts those at its end that are padding.
//
//   tokens    uint32, the batch: at least one token, then perhaps padding, NO_TOKEN
//   state     its word POSITION is the position of token 0; PADDING is written
//   history   uint32, `size` words: the token at position p goes to p % size
//
// An invocation for each token; of tokens with the same place in the history only the last is written.

layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer Tokens { uint tokens[]; };
layout(binding = 1) buffer State { uint state[]; };
layout(binding = 2) writeonly buffer History { uint history[]; };
layout(push_constant) uniform Arguments { uint count; uint size; };

bool is_there(uint token) { return token < count && tokens[token] != NO_TOKEN; }

void main() {
    uint token = gl_GlobalInvocationID.x;
    if (!is_there(token)) return;
    if (!is_there(token + size)) history[(state[POSITION] + token) % size] = tokens[token];
    if (!is_there(token + 1u)) state[PADDING] = count - token - 1u;
}
