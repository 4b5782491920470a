// Repetition penalty: for every token among the last LAST_N of the history, divides the logit by the
// penalty if it is positive, and multiplies it if not. Once per token, however often it occurs.
//
//   logits    float32, VOCABULARY; changed in place
//   history   uint32: the token of position p is at p % size
//   marks     uint32, a bit for each token, all 0; those that occur are set
//   state     POSITION, PADDING: the history holds the tokens before POSITION + count - PADDING
//   settings  PENALTY, INVERSE_PENALTY, LAST_N
//
// The tokens of the history are dealt out to invocations in turn: those of one workgroup, or of as
// many as are needed for at most 60,000 tokens per invocation.

layout(local_size_x_id = 0) in;

layout(binding = 0) buffer Logits { float logits[]; };
layout(binding = 1) readonly buffer History { uint history[]; };
layout(binding = 2) buffer Marks { uint marks[]; };
layout(binding = 3) readonly buffer State { uint state[]; };
layout(binding = 4) readonly buffer Settings { uint settings[]; };
layout(push_constant) uniform Arguments { uint count; uint size; };

void main() {
    float penalty = uintBitsToFloat(settings[PENALTY]);
    float inverse = uintBitsToFloat(settings[INVERSE_PENALTY]);
    uint known = state[POSITION] + count - state[PADDING];
    uint looked_at = penalty == 1.0 ? 0u : min(min(settings[LAST_N], known), size);
    uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < looked_at; i += step) {
        uint token = history[(known - 1u - i) % size];
        if (token < VOCABULARY) {
            uint bit = 1u << token % 32u;
            if ((atomicOr(marks[token / 32u], bit) & bit) == 0u) {
                float logit = logits[token];
                logits[token] = logit > 0.0 ? logit * inverse : logit * penalty;
            }
        }
    }
}
