//go:build cgo

package semantic
import ("testing";"context";"time";"errors";"fmt";"math")
func TestStub(t *testing.T){
 rt,err:=Open(context.Background(),Options{}); if err!=nil{t.Fatal(err)}
 m,err:=rt.Load(context.Background(),"/x",LoadOptions{}); if err!=nil{t.Fatal(err)}
 _,err=rt.Load(context.Background(),"/missing",LoadOptions{}); fmt.Println(err)
 big:=make([]string,50000); for i:=range big{big[i]=fmt.Sprint("text ",i)}; big[7]=""; big[8]=big[9][1:3]
 c,err:=m.Classify(context.Background(),append(big,"const","\xff"),RunOptions{})
 if c.Rows[50000].Label!="odd"||c.Rows[7].Label!="even"||c.Rows[8].TokenCount!=2||!math.IsNaN(float64(c.Rows[50001].Score)){t.Fatal(c.Rows[50000:])}
 fmt.Println(err, errors.Is(err,ErrInvalidArgument))
 tk,err:=m.ClassifyTokens(context.Background(),[]string{"","abc","\xff","de"},RunOptions{}); fmt.Printf("%+v %v\n",tk,err)
 em,err:=m.Embed(context.Background(),[]string{"","abc"},RunOptions{}); fmt.Printf("%+v %v\n",em,err)
 ct,err:=m.CountTokens(context.Background(),[]string{"","abc"},RunOptions{}); fmt.Printf("%+v %v\n",ct,err)
 i,err:=m.Info(); fmt.Printf("%+v %v\n",i,err)
 ctx,cancel:=context.WithTimeout(context.Background(),30*time.Millisecond); b:=time.Now()
 _,err=m.Classify(ctx,[]string{"sleep"},RunOptions{}); fmt.Println(err,time.Since(b), errors.Is(err,context.DeadlineExceeded)); cancel()
 ctx,cancel=context.WithCancel(context.Background()); time.AfterFunc(30*time.Millisecond,cancel); b=time.Now()
 _,err=m.Classify(ctx,[]string{"sleep"},RunOptions{}); fmt.Println(err,time.Since(b), errors.Is(err,context.Canceled))
 go func(){time.Sleep(30*time.Millisecond);rt.Cancel(9)}(); b=time.Now()
 _,err=m.Classify(context.Background(),[]string{"sleep"},RunOptions{CancelKey:9}); fmt.Println(err,time.Since(b))
 x,err:=m.Classify(context.Background(),nil,RunOptions{}); fmt.Printf("%+v %v\n",x,err)
 go m.Classify(context.Background(),[]string{"sleep"},RunOptions{}); time.Sleep(20*time.Millisecond)
 sh,c2:=context.WithTimeout(context.Background(),30*time.Millisecond); defer c2(); fmt.Println(m.Shutdown(sh)); b=time.Now(); fmt.Println(m.Close(),time.Since(b))
 s,err:=rt.Stats(); fmt.Printf("%+v %v\n",s,err); fmt.Println(rt.Close())
}
