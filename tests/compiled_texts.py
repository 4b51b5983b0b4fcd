"""Short pieces of compiled text: of 8 GPUs (jax 0.11.2, H200) unless they say otherwise."""

# ruff: noqa: E501

REDUCER = """
%add.clone (x.3: f32[], y.1: f32[]) -> f32[] {
  %x.3 = f32[] parameter(0)
  %y.1 = f32[] parameter(1)
  ROOT %add.9 = f32[] add(%x.3, %y.1)
}
"""

TABLES = """
FileNames
1 "/home/me/train.py"
2 "/env/lib/python3.12/site-packages/optax/_src/transform.py"

FunctionNames
1 "<module>"
2 "loss"
3 "update"

FileLocations
1 {file_name_id=1 function_name_id=1 line=36 end_line=36 column=0 end_column=0}
2 {file_name_id=1 function_name_id=2 line=17 end_line=17 column=4 end_column=9}
3 {file_name_id=2 function_name_id=3 line=90 end_line=90 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}

"""

HEAD = "HloModule jit_step, is_scheduled=true, num_partitions=8\n" + TABLES + REDUCER

# A loop of three steps: gathered synchronously, in pairs, and in an asynchronous pair; a sum in
# the newer asynchronous form, whose tuple holds the operands first; a scattered sum.
GPU_LOOP = (
    HEAD
    + """
%region_0.1_spmd (p: (s32[], bf16[128,512])) -> (s32[], bf16[128,512]) {
  %p = (s32[], bf16[128,512]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %w = bf16[128,512]{1,0} get-tuple-element(%p), index=1
  %v = bf16[128,512]{1,0} copy(%w)
  %all-gather.9 = (bf16[512,512]{1,0}, bf16[512,512]{1,0}) all-gather(%w, %v), channel_id=1, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}, use_global_device_ids=true, frontend_attributes={is_spmd_generated="true"}, metadata={op_name="jit(step)/jvp()/while/body/squeeze" scheduling_name="all-gather-start" stack_frame_id=2}, backend_config={"collective_backend_config":{"is_sync":true}}
  %all-gather-start.1 = ((bf16[128,512]{1,0}, bf16[128,512]{1,0}), (bf16[512,512]{1,0}, bf16[512,512]{1,0})) all-gather-start(%w, %v), channel_id=4, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}, use_global_device_ids=true, metadata={op_name="jit(step)/while/body/squeeze" stack_frame_id=2}, backend_config={"collective_backend_config":{"is_sync":false}}
  %all-gather-done.1 = (bf16[512,512]{1,0}, bf16[512,512]{1,0}) all-gather-done(%all-gather-start.1)
  %all-reduce-start = ((bf16[128,512]{1,0}), bf16[128,512]{1,0}) all-reduce-start(%w), channel_id=3, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=%add.clone, output_to_operand_aliasing={{1}: (0, {})}, metadata={op_name="jit(step)/while/body/dot_general" stack_frame_id=3}
  %all-reduce-done = bf16[128,512]{1,0} all-reduce-done(%all-reduce-start)
  %part = bf16[512,512]{1,0} get-tuple-element(%all-gather-done.1), index=0
  %reduce-scatter.5 = bf16[128,512]{1,0} reduce-scatter(%part), channel_id=9, replica_groups=[2,4]<=[4,2]T(1,0), use_global_device_ids=true, dimensions={0}, to_apply=%add.clone, metadata={op_name="jit(step)/while/body/transpose" stack_frame_id=2}
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %t = (s32[], bf16[128,512]{1,0}) tuple(%next, %reduce-scatter.5)
}

%region_1.2_spmd (p.1: (s32[], bf16[128,512])) -> pred[] {
  %p.1 = (s32[], bf16[128,512]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %n = s32[] constant(3)
  ROOT %lt = pred[] compare(%i.1, %n), direction=LT
}

ENTRY %main.0_spmd (param.1: bf16[128,512]) -> bf16[128,512] {
  %param.1 = bf16[128,512]{1,0} parameter(0), sharding={mesh['data'=4,'model'=2], [{'data'}, {'model'}]}, metadata={op_name="params['w']" scheduling_name="param.1"}
  %zero = s32[] constant(0)
  %tuple.13 = (s32[], bf16[128,512]{1,0}) tuple(%zero, %param.1)
  %while.26 = (s32[], bf16[128,512]{1,0}) while(%tuple.13), condition=%region_1.2_spmd, body=%region_0.1_spmd, metadata={op_name="jit(step)/while" stack_frame_id=2}, backend_config={"known_trip_count":{"n":"3"},"known_init_step":{"init":"0","step":"1"}}
  ROOT %out = bf16[128,512]{1,0} get-tuple-element(%while.26), index=1
}
"""
)

# Without what the compiler knows of it, the loop's length must come from its condition.
GPU_LOOP_OF_UNSTATED_LENGTH = GPU_LOOP.replace('"known_trip_count":{"n":"3"},', "")

# Manual collectives, a permute in the asynchronous form with contexts, a wrapped asynchronous
# all-to-all, a sum inside a fusion (older XLA gives an all-reduce-start its result's shape alone).
GPU_WRAPPED = (
    HEAD
    + """
%async_computation (q: f32[128,256]) -> f32[128,256] {
  %q = f32[128,256]{1,0} parameter(0)
  ROOT %all_to_all.13.2 = f32[128,256]{0,1} all-to-all(%q), channel_id=1, replica_groups=mesh['data'=4,'model'=2] {'model'}, dimensions={1}, metadata={op_name="jit(sm)/shard_map/all_to_all" stack_frame_id=2}
}

%wrapped_all-reduce-start (r: f32[128,256]) -> f32[128,256] {
  %r = f32[128,256]{1,0} parameter(0)
  ROOT %all-reduce-start = f32[128,256]{1,0} all-reduce-start(%r), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add.clone
}

ENTRY %main.0_spmd (param.1: f32[128,256]) -> f32[128,256] {
  %param.1 = f32[128,256]{1,0} parameter(0), metadata={op_name="x"}
  %ppermute-start = (f32[128,256]{1,0}, f32[128,256]{1,0}, u32[], u32[]) collective-permute-start(%param.1), channel_id=1, source_target_pairs={{0,2},{2,4},{4,6},{6,0},{1,3},{3,5},{5,7},{7,1}}, metadata={op_name="jit(sm)/shard_map/ppermute" stack_frame_id=2}
  %ppermute-done = f32[128,256]{1,0} collective-permute-done(%ppermute-start)
  %a2a-start = ((f32[128,256]{1,0}), f32[128,256]{1,0}, u32[]) async-start(%ppermute-done), calls=%async_computation
  %a2a-done = f32[128,256]{1,0} async-done(%a2a-start)
  ROOT %fusion = f32[128,256]{1,0} fusion(%a2a-done), kind=kLoop, calls=%wrapped_all-reduce-start
}
"""
)
