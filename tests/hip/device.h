/* The few words of HIP that Penstock's kernels use, for a clang that has no HIP headers. */
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))

#define HIP_PLACE(name, X, Y, Z)                                      \
    struct name##_type {                                              \
        struct { __device__ operator unsigned() const { return X; } } x; \
        struct { __device__ operator unsigned() const { return Y; } } y; \
        struct { __device__ operator unsigned() const { return Z; } } z; \
    };                                                                \
    static const __device__ name##_type name = {};
#define HIP_GROUPS(d) (__builtin_amdgcn_grid_size_##d() / __builtin_amdgcn_workgroup_size_##d())

HIP_PLACE(threadIdx, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
          __builtin_amdgcn_workitem_id_z())
HIP_PLACE(blockIdx, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
          __builtin_amdgcn_workgroup_id_z())
HIP_PLACE(blockDim, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
          __builtin_amdgcn_workgroup_size_z())
HIP_PLACE(gridDim, HIP_GROUPS(x), HIP_GROUPS(y), HIP_GROUPS(z))

static __device__ void __syncthreads() { __builtin_amdgcn_s_barrier(); }
