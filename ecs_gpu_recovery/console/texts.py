"""What the pages say, in English and Chinese. The English text is the key.

What records say (reasons, evidence) stays as it was written.
"""

from __future__ import annotations

from collections.abc import Callable

LANGUAGES = {"en": "English", "zh": "中文"}
_ZH = """
ECS GPU Recovery=ECS GPU 自愈
Skip to content=跳到正文
Overview=总览
Jobs=任务
New job=新建任务
Nodes=节点
Alerts and audit=告警与审计
Sign in=登录
Sign out=退出
Name=名称
Password=密码
The name or the password is wrong.=用户名或密码错误。
Too many tries. Wait a few minutes.=尝试次数过多，请几分钟后再试。
Light or dark=浅色或深色
Language=语言
viewer=只读
operator=操作员
Live=实时
Reconnecting…=正在重新连接…
Fleet=节点集群
What the system is doing now=系统正在做什么
Nothing: no job is running.=空闲：没有运行中的任务。
Messages to people=需要人处理的消息
Nobody is needed.=目前不需要人工处理。
All messages=全部消息
Recent jobs=最近的任务
All jobs=全部任务
No jobs yet.=还没有任务。
No nodes yet.=还没有节点。
free=空闲
in use=使用中
out of use=停用
nodes=个节点
jobs running=个任务运行中
Job=任务
State=状态
Attempt=尝试
Submitted=提交时间
Last change=最近变化
Node=节点
Rank=序号
Task=进程
Exit=退出
Verdict=检查结论
Why=原因
Evidence=依据
Time=时间
Who=谁
Action=操作
Subject=对象
Outcome=结果
since=自
More=更多
Filter by state=按状态筛选
all=全部
Apply=应用
State of the job=任务状态
Where the time went=时间去向
Ranks and nodes=各节点情况
What happened and why=发生了什么、为什么
Logs=日志
Progress=训练进度
Details=详细信息
Effective training time=有效训练时间
of the time since submission=（占提交以来的时间）
Steps=步数
Loss=损失
Trained twice=重复训练的步数
Resumed at step=恢复于第几步
Total time=总时间
Retries left=剩余重试次数
Command=命令
Checkpoints=检查点目录
Variables=环境变量
Submitted by=提交者
Repeats job=重跑自任务
Stop the job=停止任务
Run again=重新运行
Reason=理由
Stop it=确认停止
Keep running=继续运行
Every rank is stopped. The job ends for good.=所有节点上的进程都会停止，任务将结束。
from the last checkpoint, as a new job=作为新任务，从最近的检查点开始
Follow=跟随
Search in this log=在此日志中搜索
Search=搜索
Download=下载
Earlier=更早的内容
Close the search=关闭搜索
Nothing was written yet.=还没有输出。
No progress was reported yet.=还没有上报进度。
Lines found=找到的行
Phase=阶段
Duration=时长
Check before the start=启动前检查
waiting=等待中
under check=检查中
passed=通过
GPUs=GPU 数
Address=地址
Held by job=被任务占用
Drained by=停用人
Last verdict=最近结论
Findings=发现
Last check=最近一次检查
No report yet.=还没有检查报告。
History=历史
Actions=操作
Drain=停用
Release=恢复使用
Reboot=重启
Check=检查
Keeps new jobs off this node.=新任务不再使用此节点。
Gives the node back into use.=让节点重新可用。
Restarts the node. Refused while a job holds it.=重启节点。被任务占用时会被拒绝。
Examines the GPUs. Refused while a job holds it.=检查 GPU。被任务占用时会被拒绝。
A reason is kept with your name.=理由会和您的名字一起记录。
How deep=检查深度
Do it=执行
Jobs that ran here=在此运行过的任务
What people did here=人工操作记录
Orders still pending=尚未完成的指令
No order is pending.=没有待执行的指令。
Send again=重新发送
Dead letters=死信
Every event was handled.=所有事件均已处理。
Event=事件
More in the queue, or in somebody's hands=队列中或他人正在查看的还有
Tries=次数
Due=到期
Error=错误
What people did=人工操作
Nothing was done yet.=还没有操作记录。
What the system did=系统操作
Happened=发生了什么
Done=已处理
Next=接下来
A short name=简短名称
letters, digits, dot, dash=字母、数字、点、横线
Where=在哪里运行
Any free nodes=任意空闲节点
These nodes=指定节点
How many=数量
What=运行什么
A command=命令
A script=脚本
Start from a template=使用模板
The program and its arguments, as in a shell=程序及其参数，与命令行写法相同
Python, or a shell script that begins with #!=Python 脚本，或以 #! 开头的 Shell 脚本
Upload a file=上传文件
Arguments=参数
One NAME=value on each line=每行一个变量：名称、等号、值
Working folder=工作目录
Checkpoint folder=检查点目录
made for the job if empty=留空则自动创建
Rendezvous port=通信端口
a free one if empty=留空则自动选择
GPUs of each node=每个节点的 GPU 数
all if empty=留空则使用全部
Memory limit (MiB)=内存上限（MiB）
none if empty=留空则不限制
Automatic restarts=自动重启次数
Check the nodes first=先检查节点
Task definition (AWS)=任务定义（AWS）
Container image (AWS)=容器镜像（AWS）
Container (AWS)=容器名称（AWS）
More settings=更多设置
Preview=预览
Submit=提交
Please look at the fields below.=请检查下面的字段。
Runs on=运行于
Would be refused now=目前会被拒绝
Variables of rank 0=节点 0 的环境变量
Task definition=任务定义
none: skip the check=none：不检查
quick: what the driver and the kernel log say=quick：驱动与内核日志
1: and DCGM's short tests=1：外加 DCGM 简短测试
2: and DCGM's tests of some minutes=2：外加 DCGM 数分钟测试
3: and DCGM's long tests under load=3：外加 DCGM 长时间负载测试
4: and DCGM's longest tests=4：外加 DCGM 最长测试
Pages=页面
The control plane does not answer=控制平面没有响应
What you see may be old. The console keeps trying.=您看到的可能是旧数据，控制台会继续尝试。
This page does not exist=没有这个页面
It was refused=请求被拒绝
Something went wrong=出错了
Back=返回
Running=运行中
Checking nodes=检查节点
Waiting for nodes=等待节点
Restarting=正在重启
Complete=已完成
Failed=失败
Stopped=已停止
Available=可用
Not heard from=失联
Assigned=已分配
Stopping=停止中
Under check=检查中
Rebooting=重启中
running=运行
stopping and checking=停止并检查
rebooting=重启节点
restarting=重新启动
checking before the start=启动前检查
Legend=图例
Built-in example (no GPU needed)=内置示例（不需要 GPU）
torchrun (DDP, FSDP)=torchrun（DDP、FSDP）
Hugging Face Accelerate=Hugging Face Accelerate
DeepSpeed=DeepSpeed
Loss by training step, one line per attempt=各次尝试的损失曲线
drained=已停用
Newest first=最新在前
Older=更早
not signed in=未登录
Possible next=接下来可能
Terminated=已终止
at most=最多
GPU utilisation=GPU 利用率
GPU memory=GPU 显存
GPU temperature=GPU 温度
GPU power=GPU 功耗
Processors in use=占用的处理器核
Memory=内存
healthy=健康
needs a reboot=需要重启
must be replaced=必须更换
inconclusive=没有结论
lost=失联
done=完成
suspect=可疑
stopped by us=由系统停止
stopped by a person=由人停止
out of memory=内存不足
never started=没有启动
fault=出错
Drained=已停用
Healthy, waiting=健康，等待中
Because=因为
Since=开始于
Rule=规则
Ends at the latest=最迟结束
More nodes, not drawn=未画出的节点数
What was asked for=提交的内容
Its nodes=所用节点
Metrics=指标
Last=最近
No numbers were kept yet.=还没有记录数据。
The numbers are in=数据在
Checks so far=历次检查
stuck=卡住
Since then=此后
earlier=更早
Stopping the gang: {left} of {all} tasks still run.=正在停止全部进程：{all} 个中还有 {left} 个在运行。
The job is ending: {left} of {all} tasks still run.=任务正在结束：{all} 个进程中还有 {left} 个在运行。
Examining {all} nodes before the first start: {done} have answered.=首次启动前检查 {all} 个节点：{done} 个已有结果。
Examining {all} nodes: {done} have answered.=正在检查 {all} 个节点：{done} 个已有结果。
Waiting for {nodes}. Then all {all} ranks start again from the last checkpoint.\
=正在等待 {nodes}，之后全部 {all} 个进程从最近的检查点重新开始。
Starting all ranks again: {done} of {all} run.=正在重新启动全部进程：{all} 个中已有 {done} 个在运行。
Starting: {done} of {all} ranks run.=正在启动：{all} 个进程中已有 {done} 个在运行。
Finishing: {done} of {all} ranks are done.=即将完成：{all} 个进程中已有 {done} 个结束。
Training on {all} nodes.=正在 {all} 个节点上训练。
Training on one node.=正在 1 个节点上训练。
Nothing: the job has ended.=无：任务已结束。
submitted without a check: the gang starts=未经检查提交：直接启动全部进程
submitted: the nodes are examined before the first start=已提交：首次启动前先检查节点
every node passed the check before the first start=所有节点都通过了启动前检查
every rank ended with success=所有进程都成功结束
a rank died in a way a GPU fault can cause, or its node was lost=某个进程的退出方式可能由 GPU 故障引起，或其节点失联
an end that no reboot can cure, or a gang that could not start=重启无法解决的结束，或进程无法启动
a person stopped the job or one of its tasks=有人停止了任务或其中一个进程
a GPU fault that a reboot may cure, or a lost node, and a retry left=重启可能修复的 GPU 故障或节点失联，且还有重试次数
no GPU fault found, no retry left, a node to replace, or a check never answered\
=没有发现 GPU 故障、重试次数已用完、节点需要更换，或检查没有结果
a person stopped the job=有人停止了任务
every node of the gang is back=所有节点都已恢复
a node did not come back, or could not be rebooted=有节点没有恢复，或无法重启
every rank has been started again, or a node was lost meanwhile=所有进程都已重新启动，或期间有节点失联
a rank could not be started again=有进程无法重新启动
Container on AWS=AWS 上的容器
Only shows the task definition that AWS would get: the embedded mode uses no containers.\
=仅用于预览 AWS 的任务定义：本地模式不使用容器。
Folders of the node=挂载节点目录
HOST:CONTAINER or HOST:CONTAINER:ro, one on each line=每行一个：节点目录、冒号、容器目录，可加 :ro 表示只读
Shared memory (MiB)=共享内存（MiB）
InfiniBand devices=InfiniBand 设备
Log group=日志组
Task role=任务角色
Execution role=执行角色
python is the Python of this console; give a path for another=python 指本控制台所用的 Python；要用其他的请写完整路径
Small training loop, no packages needed=简单训练循环（无需安装软件包）
PyTorch DDP with checkpoints=PyTorch DDP（带检查点）
Shell script around torchrun=用 Shell 脚本启动 torchrun
"""
ZH: dict[str, str] = {}
for _line in _ZH.strip().splitlines():
    _english, _, _chinese = _line.rpartition("=")
    ZH[_english] = _chinese

JOB_LABELS = {
    "IN_PROGRESS": "Running",
    "PENDING_HEALTHCHECK": "Checking nodes",
    "PENDING_RESTART": "Waiting for nodes",
    "RESTARTING": "Restarting",
    "COMPLETE": "Complete",
    "FAILED": "Failed",
    "USER_STOPPED": "Stopped",
    "TERMINATED": "Terminated",  # of a task
}
NODE_LABELS = {
    "AVAILABLE": "Available",
    "UNKNOWN": "Not heard from",
    "ASSIGNED": "Assigned",
    "IN_PROGRESS": "Running",
    "PENDING": "Stopping",
    "PENDING_HEALTHCHECK": "Under check",
    "REBOOTING": "Rebooting",
    "FAILED": "Failed",
}

#: How deep a node is examined.
LEVELS = {
    "quick": "quick: what the driver and the kernel log say",
    "1": "1: and DCGM's short tests",
    "2": "2: and DCGM's tests of some minutes",
    "3": "3: and DCGM's long tests under load",
    "4": "4: and DCGM's longest tests",
    "none": "none: skip the check",
}
#: Titles of charts; `charts` draws them.
CHARTS = (
    "GPU utilisation",
    "GPU memory",
    "GPU temperature",
    "GPU power",
    "Processors in use",
    "Memory",
)
#: What the check of a node said, as people say it.
VERDICTS = {
    "healthy": "healthy",
    "reboot": "needs a reboot",
    "replace": "must be replaced",
    "inconclusive": "inconclusive",
    "lost": "lost",
}


def translator(language: str) -> Callable[[str], str]:
    if language == "zh":
        return lambda text: ZH.get(text, text)
    return lambda text: text


def choose(cookie: str, accept: str) -> str:
    """The person's own choice, or what their browser asks for."""
    if cookie in LANGUAGES:
        return cookie
    wishes: list[tuple[float, str]] = []
    for part in accept.split(",")[:20]:
        name, _, quality = part.strip().partition(";q=")
        try:
            weight = float(quality) if quality else 1.0
        except ValueError:
            weight = 0.0
        wishes.append((weight, name.lower()[:2]))
    for _, name in sorted(wishes, key=lambda wish: -wish[0]):
        if name in LANGUAGES:
            return name
    return "en"
