// Adds a bias to the logits of some tokens, before everything else of sampling.
//
//   logits    float32, VOCABULARY; changed in place
//   ids       uint32: the tokens, each once
//   values    float32: what is added to the logit of each; an infinite one replaces it, unless it is
//             NaN
//   settings  BIASED: how many there are
//
// The tokens are dealt out to invocations in turn.

layout(local_size_x_id = 0) in;

layout(binding = 0) buffer Logits { float logits[]; };
layout(binding = 1) readonly buffer Ids { uint ids[]; };
layout(binding = 2) readonly buffer Values { float values[]; };
layout(binding = 3) readonly buffer Settings { uint settings[]; };

void main() {
    uint number = settings[BIASED], step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < number; i += step) {
        uint token = ids[i];
        if (token < VOCABULARY) {
            float logit = logits[token], value = values[i];
            precise float biased = logit + value;
            // By bits, since a driver may assume that floats are finite.
            bool infinite = (floatBitsToUint(value) & 0x7FFFFFFFu) == 0x7F800000u;
            bool is_number = (floatBitsToUint(logit) & 0x7FFFFFFFu) <= 0x7F800000u;
            logits[token] = infinite && is_number ? value : biased;
        }
    }
}
