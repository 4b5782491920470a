// The floor without an interpreter: the launches of raw.py, in loops of C.
//
// Everything is made by raw.py, which fills in the structure below; here are only the calls that
// are measured. Each function returns the first Vulkan error, or 0.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "vulkan.cdef.h"

enum { COMPUTE_STAGE = 0x800, HOST_STAGE = 0x4000, COMPUTE = 0x20 };

// All members are of the size of a pointer, in the order of _MEMBERS in native.py.
typedef struct Native {
    VkDevice device;
    VkQueue queue;
    VkCommandBuffer command;
    VkPipeline pipeline;
    VkPipelineLayout layout;
    VkDescriptorUpdateTemplate template;  // or null, and then bindings are descriptor sets
    void *constants;
    size_t constants_size;
    const VkCommandBufferBeginInfo *begin;
    const VkMemoryBarrier *between;
    const VkMemoryBarrier *to_host;
    const VkSubmitInfo *submission;
    const VkSemaphoreWaitInfo *wait;
    uint64_t *value;
    PFN_vkBeginCommandBuffer vk_begin;
    PFN_vkCmdBindPipeline vk_bind;
    void *vk_describe;
    PFN_vkCmdPushConstants vk_push;
    PFN_vkCmdDispatch vk_dispatch;
    PFN_vkCmdPipelineBarrier vk_barrier;
    PFN_vkEndCommandBuffer vk_end;
    PFN_vkQueueSubmit vk_submit;
    PFN_vkWaitSemaphores vk_wait;
    const void *bindings;
    size_t groups;
} Native;

// Begin the command buffer, and record dependent launches: five calls each.
int native_record(const Native *n, uint32_t times) {
    VkCommandBuffer command = n->command;
    VkResult result = n->vk_begin(command, n->begin);
    while (times--) {
        n->vk_bind(command, VK_PIPELINE_BIND_POINT_COMPUTE, n->pipeline);
        if (n->template)
            ((PFN_vkCmdPushDescriptorSetWithTemplateKHR)n->vk_describe)(
                command, n->template, n->layout, 0, n->bindings);
        else
            ((PFN_vkCmdBindDescriptorSets)n->vk_describe)(command, VK_PIPELINE_BIND_POINT_COMPUTE,
                                                       n->layout, 0, 1, n->bindings, 0, NULL);
        n->vk_push(command, n->layout, COMPUTE, 0, n->constants_size, n->constants);
        n->vk_dispatch(command, n->groups, 1, 1);
        n->vk_barrier(command, COMPUTE_STAGE, COMPUTE_STAGE, 0, 1, n->between, 0, NULL, 0, NULL);
    }
    return result;
}

// Make the results visible to the host, and end the command buffer.
int native_end(const Native *n) {
    n->vk_barrier(n->command, COMPUTE_STAGE, HOST_STAGE, 0, 1, n->to_host, 0, NULL, 0, NULL);
    return n->vk_end(n->command);
}

// Run what is recorded, and wait for it.
int native_run(const Native *n) {
    ++*n->value;
    VkResult result = n->vk_submit(n->queue, 1, n->submission, NULL);
    return result ? result : n->vk_wait(n->device, n->wait, UINT64_MAX);
}

// Issue dependent launches, and wait for the last.
int native_chain(const Native *n, uint32_t times) {
    int result = native_record(n, times);
    if (!result) result = native_end(n);
    return result ? result : native_run(n);
}

// One launch and waiting for it, again and again.
int native_wait(const Native *n, uint32_t times) {
    int result = 0;
    while (times-- && !result) result = native_chain(n, 1);
    return result;
}

// Launch with each index as second constant, and fetch the value that the kernel leaves.
int native_results(const Native *n, uint32_t times, const uint32_t *indices, float *values,
                   const float *left) {
    int result = 0;
    for (uint32_t i = 0; i < times && !result; i++) {
        ((uint32_t *)n->constants)[1] = indices[i];
        result = native_chain(n, 1);
        values[i] = *left;
    }
    return result;
}

// Copy in, launch, wait, copy out, again and again; sources and results lie end to end.
int native_trips(const Native *n, uint32_t times, size_t nbytes, const char *sources, char *x,
                 const char *y, char *results) {
    int result = 0;
    for (uint32_t i = 0; i < times && !result; i++) {
        memcpy(x, sources + i * nbytes, nbytes);
        result = native_chain(n, 1);
        memcpy(results + i * nbytes, y, nbytes);
    }
    return result;
}
